"""A card that runs when told: the runtime on host tensors, for tests and for rehearsing scripts.

A stream is a queue of deferred operations. Copies read their source and passes read their inputs
when their turn comes, as on a card; so a staging buffer that is overwritten too early gives wrong
answers here, and a graph that is reset too early raises. Nothing completes by itself: `advance`
runs operations, and waiting for an event runs the stream up to it, as time would.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from hedgerow_engine.device.cuda.runtime import DeviceMemoryError
from hedgerow_engine.graphs import CaptureError

Operation = Callable[[], None]


class RehearsalEvent:
    """Done when its last mark was reached."""

    def __init__(self, stream: RehearsalStream) -> None:
        self._stream = stream
        self._marked = 0
        self._reached = 0

    def record(self) -> None:
        self._marked += 1
        mark = self._marked

        def reach() -> None:
            self._reached = max(self._reached, mark)

        self._stream.push(reach)

    def done(self) -> bool:
        return self._reached >= self._marked

    def wait(self) -> None:
        target = self._marked
        while self._reached < target:
            self._stream.advance()


class RehearsalGraph:
    """Recorded work. Knows how many of its replays are still queued."""

    def __init__(self, stream: RehearsalStream, work: Operation) -> None:
        self._stream, self._work = stream, work
        self.queued = 0
        self.alive = True

    def replay(self) -> None:
        assert self.alive, "a graph was replayed after its reset"
        self._stream.check_replay()
        self.queued += 1

        def run() -> None:
            self.queued -= 1
            assert self.alive, "a graph was reset before its last replay ran"
            self._work()

        self._stream.push(run)

    def reset(self) -> None:
        assert self.queued == 0, "a graph was reset while a replay was in flight"
        self.alive = False


class RehearsalStream:
    """A queue of operations that `advance` runs one after another."""

    def __init__(self, card: Rehearsal) -> None:
        self._card = card
        self._queue: deque[Operation] = deque()
        # The engine thread pushes, a waiter thread may advance.
        self._lock = threading.RLock()

    @property
    def queued(self) -> int:
        return len(self._queue)

    def push(self, operation: Operation) -> None:
        with self._lock:
            self._queue.append(operation)
            if self._card.at_once:
                self.advance(len(self._queue))

    def advance(self, operations: int = 1) -> None:
        """Run up to that many operations."""
        with self._lock, torch.inference_mode():
            for _ in range(min(operations, len(self._queue))):
                self._queue.popleft()()

    def event(self) -> RehearsalEvent:
        return RehearsalEvent(self)

    def current(self) -> AbstractContextManager[object]:
        return nullcontext()

    def launch(self, work: Operation) -> None:
        if self._card.failing_launches:
            self._card.failing_launches -= 1
            raise DeviceMemoryError("rehearsed: out of memory in a launch")
        self.push(work)

    def capture(self, work: Operation) -> RehearsalGraph:
        if self._card.failing_captures:
            self._card.failing_captures -= 1
            raise CaptureError("rehearsed: out of memory in a capture")
        self._card.captures += 1
        return RehearsalGraph(self, work)

    def check_replay(self) -> None:
        if self._card.failing_replays:
            self._card.failing_replays -= 1
            raise DeviceMemoryError("rehearsed: out of memory in a replay")

    def copy_in(self, target: Tensor, source: Tensor) -> None:
        assert target.shape == source.shape, "both sides of a copy have one shape"
        self.push(lambda: _copy(target, source))

    def copy_out(self, target: Tensor, source: Tensor) -> None:
        self.copy_in(target, source)

    def synchronize(self) -> None:
        self.advance(self.queued)


class Rehearsal:
    """Satisfies `Runtime`.

    at_once: operations run as they are queued, like a card that is always faster
    failing_captures, failing_launches, failing_replays: how many of the next ones run out of
        memory
    free: what `free_bytes` answers
    """

    def __init__(self, *, at_once: bool = False, arch: int = 90) -> None:
        self.at_once, self.arch = at_once, arch
        self.name = "rehearsal on host memory"
        self.device = torch.device("cpu")
        self.free = 1 << 34
        self.captures = 0
        self.failing_captures = 0
        self.failing_launches = 0
        self.failing_replays = 0
        self.streams: list[RehearsalStream] = []

    def scope(self) -> AbstractContextManager[None]:
        return torch.inference_mode()

    def stream(self, *, urgent: bool) -> RehearsalStream:
        stream = RehearsalStream(self)
        self.streams.append(stream)
        return stream

    def zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.zeros(shape, dtype=dtype)

    def pinned(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.zeros(shape, dtype=dtype)

    def free_bytes(self) -> int:
        return self.free

    def settle(self) -> None:
        for stream in self.streams:
            stream.synchronize()

    def trim(self) -> None:
        return


def _copy(target: Tensor, source: Tensor) -> None:
    target.copy_(source)
