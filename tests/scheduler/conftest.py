"""A worker whose clock, loop and engine do nothing until the test says so."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from hedgerow_scheduler.packer import Packer, Policy
from hedgerow_scheduler.replies import Held, hold
from hedgerow_scheduler.worker import Worker
from hedgerow_shared.errors import HedgerowError
from hedgerow_shared.ragged import Lane, RaggedBatch, Row, StepOutput
from hedgerow_shared.wire import Chunk, ChunkReply

FOREVER_MS = 1e6


def answer(ids: Any) -> Row:
    """What the hand-driven engine gives for a sequence: its length and its sum."""
    return (np.array([len(ids), np.sum(ids)], np.float32),)


@dataclass
class HandLazy:
    """A step that completes when the test calls `finish` or `fail`."""

    batch: RaggedBatch
    lane: Lane
    output: StepOutput | None = None
    error: Exception | None = None
    released: bool = False
    callbacks: list[Callable[[], None]] = field(default_factory=list)

    def done(self) -> bool:
        return self.output is not None or self.error is not None

    def add_done_callback(self, callback: Callable[[], None]) -> None:
        if self.done():
            callback()
        else:
            self.callbacks.append(callback)

    def result(self) -> StepOutput:
        assert self.done(), "the worker asked before the step was done: that blocks the loop"
        if self.error is not None:
            raise self.error
        assert self.output is not None
        return self.output

    def release(self) -> None:
        """Rows are views of a buffer that is used again: make a late reader see it."""
        self.released = True
        for row in self.output.rows if self.output else []:
            for array in () if isinstance(row, HedgerowError) else row:
                array[:] = np.nan

    def finish(self, rows: Mapping[int, HedgerowError] | None = None) -> None:
        made = [answer(self.batch.sequence(i)) for i in range(self.batch.num_seqs)]
        self.output = StepOutput([(rows or {}).get(i, row) for i, row in enumerate(made)])
        for callback in self.callbacks:
            callback()

    def fail(self, error: Exception) -> None:
        self.error = error
        for callback in self.callbacks:
            callback()


class HandEngine:
    """Keeps every step it was asked for. `at_once` makes steps finish, or raise, by themselves."""

    fingerprint = "engine0"
    max_seq_len = 512
    dtype = "float32"

    def __init__(self) -> None:
        self.steps: list[HandLazy] = []
        self.at_once: Callable[[HandLazy], None] | None = None

    def step(self, batch: RaggedBatch, lane: Lane) -> HandLazy:
        lazy = HandLazy(batch, lane)
        self.steps.append(lazy)
        if self.at_once is not None:
            self.at_once(lazy)
        return lazy

    def stats(self) -> Mapping[str, Any]:
        return {"graph_replays": 7}

    @property
    def running(self) -> list[HandLazy]:
        return [s for s in self.steps if not s.done()]


class HandLoop:
    """Callbacks wait for `run`, which counts the loop's turns."""

    def __init__(self) -> None:
        self.due: list[Callable[[], object]] = []

    def call_soon(self, callback: Callable[[], object]) -> None:
        self.due.append(callback)

    def call_soon_threadsafe(self, callback: Callable[[], object]) -> None:
        self.due.append(callback)

    def run(self, turns: int = 100) -> int:
        for turn in range(turns):
            if not self.due:
                return turn
            due, self.due = self.due, []
            for callback in due:
                callback()
        return turns


class Rig:
    """One worker with two models, `m` and `n`."""

    def __init__(self, policy: Policy | None = None, **options: Any) -> None:
        self.now = 100.0
        self.engine, self.other = HandEngine(), HandEngine()
        self.loop = HandLoop()
        self.dead: list[str] = []
        self.sequences = 0
        self.replies: list[ChunkReply] = []
        self.worker = Worker(
            {"m": self.engine, "n": self.other},
            Packer[Held](policy or Policy(budget=512)),
            self.loop,
            lambda: self.now,
            worker_id="w0",
            on_dead=self.dead.append,
            **options,
        )

    def offer(
        self,
        chunk_id: str,
        *seqlens: int,
        lane: Lane = Lane.QUERY,
        model: str = "m",
        ttl_ms: float = FOREVER_MS,
        run: bool = True,
    ) -> Held:
        batch = RaggedBatch.of([self._sequence(n) for n in seqlens])
        chunk = Chunk(chunk_id, model, lane, ttl_ms, batch)
        held = hold(
            chunk,
            self.keep,
            arrived_s=self.now,
            expires_s=self.now + ttl_ms / 1e3,
            quadratic=0.0,
        )
        self.worker.offer(held)
        if run:
            self.loop.run()
        return held

    def _sequence(self, length: int) -> Any:
        """Ids up to `length`, no two alike: what repeats in a batch is run once."""
        self.sequences += 1
        ids = np.arange(length) + 1
        ids[0] = 10_000 + self.sequences
        return ids

    def keep(self, reply: ChunkReply) -> None:
        """Deliver, as the bus does: the rows are read before this returns."""
        reply.rows[:] = [
            r if isinstance(r, HedgerowError) else tuple(a.copy() for a in r) for r in reply.rows
        ]
        self.replies.append(reply)

    def finish(self, step: int, **kwargs: Any) -> None:
        self.engine.steps[step].finish(**kwargs)
        self.loop.run()

    def fail(self, step: int, error: Exception) -> None:
        self.engine.steps[step].fail(error)
        self.loop.run()

    @property
    def answered(self) -> list[str]:
        return [r.id for r in self.replies]

    def lengths(self, reply: int) -> list[Any]:
        """Of each row of a reply: its length, or the code of its error."""
        rows = self.replies[reply].rows
        return [r.code if isinstance(r, HedgerowError) else int(r[0][0]) for r in rows]


@pytest.fixture
def rig() -> Rig:
    return Rig()
