"""Notices what a worker cannot notice by itself: a step that never ends, an engine thread that
is gone, and that the whole process had stood still.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

_log = logging.getLogger("hedgerow.worker")

STALL_S = 0.25
"""A loop that is this late was stopped or starved: what it reads now may be old."""


class Watchdog:
    """Call `tick` every `period_s` from the event loop.

    oldest_flight: the batch that has been on the device longest, compared by identity
    is_alive: False once an engine's thread has ended
    hung_s: how long one batch may stay oldest. Counted in ticks, so time in which the whole
        process was stopped (SIGSTOP, a suspended machine) is nobody's fault
    on_dead: called once with the reason
    on_stall: called after the process had stood still; `refreshed` must follow once everything
        that waited in the socket meanwhile has been read
    """

    def __init__(
        self,
        *,
        oldest_flight: Callable[[], object | None],
        is_alive: Callable[[], bool],
        hung_s: float,
        clock: Callable[[], float],
        on_dead: Callable[[str], None],
        on_stall: Callable[[], None],
        period_s: float = 0.25,
    ) -> None:
        self.period_s = period_s
        self._oldest_flight, self._is_alive = oldest_flight, is_alive
        self._hung_s, self._clock = hung_s, clock
        self._on_dead, self._on_stall = on_dead, on_stall
        self._seen: object | None = None
        self._ticks = 0
        self._last_s = clock()
        self._stalled_s = 0.0

    def begin(self) -> None:
        """From now on ticks are due: what took long before, at start, was no standing still."""
        self._last_s = self._clock()

    def tick(self) -> None:
        late_s = self._late_s()
        self._last_s = self._clock()
        if late_s:
            self._stalled_s = max(self._stalled_s, late_s)
            _log.warning("this process stood still for %.2f s", late_s)
            self._on_stall()
        flight = self._oldest_flight()
        self._ticks = self._ticks + 1 if flight is not None and flight is self._seen else 0
        self._seen = flight
        if not self._is_alive():
            self._on_dead("the engine's thread has ended")
        elif self._ticks * self.period_s > self._hung_s:
            self._on_dead(f"a step has been on the device for more than {self._hung_s:g} s")

    def age_s(self) -> float:
        """How old a message may be that is read now: 0 unless the process had stood still."""
        return max(self._stalled_s, self._late_s())

    def refreshed(self) -> None:
        """Everything sent to us while we stood still has been read."""
        self._stalled_s = 0.0

    def _late_s(self) -> float:
        late_s = self._clock() - self._last_s - self.period_s
        return late_s if late_s > STALL_S else 0.0
