"""How long chunks take lately: what a hung worker is told apart from a busy one by."""

from __future__ import annotations

from collections import deque

_WINDOW = 256
_ENOUGH = 16
_REFRESH = 16


class Latencies:
    """The last 256 times of one model and lane."""

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=_WINDOW)
        self._since_refresh = 0
        self._p99_s = 0.0

    def add(self, seconds: float) -> None:
        self._recent.append(seconds)
        self._since_refresh += 1
        if self._since_refresh >= _REFRESH or len(self._recent) <= _ENOUGH:
            self._since_refresh = 0
            ordered = sorted(self._recent)
            self._p99_s = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]

    def attempt_s(self, *, floor_s: float, factor: float, unknown_s: float) -> float:
        """How long one attempt may take before it is tried elsewhere as well.

        Before there is enough to judge by, `unknown_s`: the first chunks of a model may be slow
        for good reasons (a graph is captured, a cache is cold).
        """
        if len(self._recent) < _ENOUGH:
            return unknown_s
        return max(floor_s, factor * self._p99_s)
