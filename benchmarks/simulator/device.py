"""What runs batches: one at a time, each for as long as its tokens cost."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from benchmarks.simulator.clock import Clock
from hedgerow_shared.ragged import Lane

Overtaking = Literal["none", "pass", "layer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceModel:
    """Cost of a batch: at least `floor_s`, then in proportion to tokens padded to `bucket`.

    overtaking: whether a query passes queued bulk ("pass"), or a running one too, at the next
        boundary between two of its `layers` ("layer")
    """

    name: str
    floor_s: float
    tokens_per_s: float
    bucket: int = 1
    fixed_s: float = 0.0
    overtaking: Overtaking = "none"
    layers: int = 6

    def seconds(self, tokens: int) -> float:
        padded = math.ceil(tokens / self.bucket) * self.bucket
        return max(self.floor_s, self.fixed_s + padded / self.tokens_per_s)


# A 0.6B-class model on a GPU: 2 ms for anything up to 512 tokens, 256 tokens per ms above.
GPU = DeviceModel(name="GPU", floor_s=2e-3, tokens_per_s=256e3, bucket=64)
# One CPU worker of one thread on MiniLM: every token costs.
CPU = DeviceModel(name="CPU", floor_s=0.0, tokens_per_s=20e3, fixed_s=0.25e-3, overtaking="layer")


@dataclass(slots=True)
class Pass:
    """A batch on its way through the device."""

    lane: Lane
    cost_s: float
    done: Callable[[], None]


class Device:
    """One device: first in, first out, save for queries where it lets them overtake bulk."""

    def __init__(self, clock: Clock, model: DeviceModel) -> None:
        self._clock, self._model = clock, model
        self._urgent: deque[Pass] = deque()
        self._bulk: deque[Pass] = deque()
        self._running: Pass | None = None
        self._began_s = self._left_s = 0.0
        self._paused: tuple[Pass, float] | None = None
        self._version = 0
        self.busy_s = 0.0

    def submit(self, lane: Lane, tokens: int, done: Callable[[], None]) -> None:
        """Queue a batch; `done` is called when it has run."""
        batch = Pass(lane, self._model.seconds(tokens), done)
        passes_bulk = lane is not Lane.BULK and self._model.overtaking != "none"
        (self._urgent if passes_bulk else self._bulk).append(batch)
        if self._running is None:
            self._start_next()
        elif passes_bulk and self._model.overtaking == "layer":
            self._ask_to_pause()

    def _ask_to_pause(self) -> None:
        running = self._running
        if running is None or running.lane is not Lane.BULK or self._paused is not None:
            return
        layer_s = running.cost_s / self._model.layers
        spent_s = running.cost_s - self._left_s + self._clock.now_s - self._began_s
        boundary_s = math.ceil(spent_s / layer_s - 1e-9) * layer_s
        if boundary_s >= running.cost_s - 1e-12:
            return  # it is in its last layer
        version = self._version
        self._clock.after(boundary_s - spent_s, lambda: self._pause(version, boundary_s))

    def _pause(self, version: int, spent_s: float) -> None:
        if version != self._version or self._running is None or not self._urgent:
            return
        self._paused = (self._running, self._running.cost_s - spent_s)
        self.busy_s += self._clock.now_s - self._began_s
        self._start_next()

    def _start_next(self) -> None:
        """Waiting queries, then a bulk pass that was interrupted, then the queue."""
        self._version += 1
        self._running = None
        if self._urgent:
            self._begin(self._urgent.popleft(), None)
        elif self._paused is not None:
            (batch, left_s), self._paused = self._paused, None
            self._begin(batch, left_s)
        elif self._bulk:
            self._begin(self._bulk.popleft(), None)

    def _begin(self, batch: Pass, left_s: float | None) -> None:
        self._running, self._began_s = batch, self._clock.now_s
        self._left_s = batch.cost_s if left_s is None else left_s
        version = self._version
        self._clock.after(self._left_s, lambda: self._finish(version))

    def _finish(self, version: int) -> None:
        if version != self._version or self._running is None:
            return  # it was interrupted and will finish later
        batch = self._running
        self.busy_s += self._clock.now_s - self._began_s
        self._start_next()
        batch.done()
