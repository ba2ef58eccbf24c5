"""Simulated time: a heap of calls to be made, in order of their moment."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable


class Clock:
    """Runs calls in order of time; calls of the same moment in the order they were made."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._number = itertools.count()

    def at(self, when_s: float, call: Callable[[], None]) -> None:
        """Make a call at a moment that is not past."""
        assert when_s >= self.now_s, "the past cannot be changed"
        heapq.heappush(self._heap, (when_s, next(self._number), call))

    def after(self, delay_s: float, call: Callable[[], None]) -> None:
        self.at(self.now_s + delay_s, call)

    def run(self, until_s: float) -> None:
        """Make every call that is due up to `until_s`, and those they add."""
        while self._heap and self._heap[0][0] <= until_s:
            self.now_s, _, call = heapq.heappop(self._heap)
            call()
        self.now_s = until_s
