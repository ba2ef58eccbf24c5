"""The model at a graph key: eager on the stream, or captured. Satisfies `Forward`."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from hedgerow_engine.device.cuda.attention import KeyAttention
from hedgerow_engine.device.cuda.outputs import PER_TOKEN, Block
from hedgerow_engine.device.cuda.probe import Parts
from hedgerow_engine.device.cuda.runtime import Captured, DeviceMemoryError, Event, Stream
from hedgerow_engine.device.cuda.staging import StagingRing, StaticInputs
from hedgerow_engine.graphs import CaptureError, Key
from hedgerow_engine.models.base import ModelInputs
from hedgerow_shared.ragged import Task

_STATES = 4096


class Blocks(NamedTuple):
    """Static rows that a pass writes its answers to: one per sequence or span, one per token."""

    rows: Block | None
    tokens: Block | None


class Graveyard:
    """Graphs that are no longer replayed, until their last replay has finished."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._waiting: deque[tuple[Captured, Event]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def bury(self, graph: Captured) -> None:
        event = self._stream.event()
        event.record()
        self._waiting.append((graph, event))

    def sweep(self) -> None:
        """Give back the memory of those that are idle by now."""
        while self._waiting and self._waiting[0][1].done():
            self._waiting.popleft()[0].reset()


class StreamGraph:
    """A captured pass. Satisfies `Graph[None]`: its answer is in the static block."""

    def __init__(
        self, captured: Captured, graveyard: Graveyard, on_reset: Callable[[], None]
    ) -> None:
        self._captured, self._graveyard, self._on_reset = captured, graveyard, on_reset

    def replay(self) -> None:
        self._captured.replay()

    def reset(self) -> None:
        self._graveyard.bury(self._captured)
        self._on_reset()


@dataclass(slots=True)
class KeyState:
    """What a key keeps between passes.

    ran: an eager pass was queued whole, so its kernels are bound, compiled and planned
    captured: a graph replays what is planned here, so it may not be dropped before the graph
    """

    inputs: ModelInputs
    attention: KeyAttention
    ran: bool = False
    captured: bool = False


class StreamForward:
    """Runs and records a model over the static inputs of one stream.

    blocks: the static rows of some heads; asked before a pass is queued
    on_memory_short: lets graphs go after an eager pass ran out of memory
    planned_late: an eager pass may have planned after its slot's copies were queued
    """

    def __init__(
        self,
        parts: Parts,
        stream: Stream,
        static: StaticInputs,
        ring: StagingRing,
        blocks: Callable[[tuple[Task, ...]], Blocks],
        on_memory_short: Callable[[], None],
    ) -> None:
        self._parts, self._stream, self._static, self._ring = parts, stream, static, ring
        self._blocks, self._on_memory_short = blocks, on_memory_short
        self._states: OrderedDict[Key, KeyState] = OrderedDict()
        self.graveyard = Graveyard(stream)
        self.planned_late = False

    def eager(self, key: Key) -> None:
        """Queue a pass kernel by kernel. Short of memory, graphs go and it is tried once more."""
        self.planned_late = True
        state = self._state(key)
        work = self._work(key, state)
        try:
            self._stream.launch(work)
        except DeviceMemoryError:
            self._on_memory_short()
            self._stream.launch(work)
        # Of this very state: letting graphs go may have dropped it, and a new one has run nothing.
        state.ran = True

    def capture(self, key: Key) -> tuple[StreamGraph, None]:
        """Record the pass, then replay it: a capture runs nothing. Raises CaptureError.

        A key that came back after its state was dropped runs eagerly first: kernels are bound,
        compiled and planned in an eager pass, and none of that may happen inside a capture.
        """
        state = self._state(key)
        if not state.ran:
            self.eager(key)
        work = self._work(key, state)
        state.attention.capturing = True
        try:
            captured = self._stream.capture(work)
        finally:
            state.attention.capturing = False
        try:
            captured.replay()
        except (RuntimeError, DeviceMemoryError) as error:
            # The first launch uploads the graph, which needs memory of its own.
            self.graveyard.bury(captured)
            raise CaptureError(f"its first replay failed: {error}") from error
        state.captured = True
        self._states[key] = state
        return StreamGraph(captured, self.graveyard, lambda: self._forget(key)), None

    def attention(self, key: Key) -> KeyAttention:
        """Attention of a key, made at its first hit."""
        return self._state(key).attention

    def _work(self, key: Key, state: KeyState) -> Callable[[], None]:
        rows, tokens = self._blocks(key.heads)
        model = self._parts.model

        def work() -> None:
            outputs = model.run(state.inputs, key.heads)
            if rows is not None:
                rows.write({n: t for n, t in outputs.items() if n not in PER_TOKEN}, key.slots)
            if tokens is not None:
                tokens.write({n: t for n, t in outputs.items() if n in PER_TOKEN}, key.tokens)

        return work

    def _state(self, key: Key) -> KeyState:
        state = self._states.get(key)
        if state is None:
            if len(self._states) >= _STATES:
                self._drop_coldest()
            state = KeyState(*self._parts.inputs(key, self._static, self._ring))
            self._states[key] = state
        self._states.move_to_end(key)
        return state

    def _drop_coldest(self) -> None:
        """Forget the key that was not hit for longest. One with a graph stays: without its state
        nothing plans its passes, and a replay would read the plan of another."""
        idle = next((key for key, state in self._states.items() if not state.captured), None)
        if idle is not None:
            self._forget(idle)

    def _forget(self, key: Key) -> None:
        self._states.pop(key, None)
