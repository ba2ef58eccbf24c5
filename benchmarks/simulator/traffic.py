"""Callers of the simulated fleet, and what they saw."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from benchmarks.simulator.clock import Clock
from benchmarks.simulator.fleet import Fleet, Request
from hedgerow_shared.ragged import Lane

QUERY_TOKENS = 16
DOCUMENT_TOKENS = 512
BULK_DOCUMENTS = 100
SHORT_TEXTS, SHORT_TOKENS = 5000, 20


@dataclass(slots=True)
class Seen:
    """Milliseconds of finished requests by lane, and tokens finished, after the warm-up."""

    warm_s: float
    times_ms: dict[Lane, list[float]] = field(default_factory=lambda: {lane: [] for lane in Lane})
    tokens: dict[Lane, int] = field(default_factory=lambda: dict.fromkeys(Lane, 0))

    def finished(self, request: Request, now_s: float) -> None:
        if now_s < self.warm_s:
            return
        self.tokens[request.lane] += sum(request.seqlens)
        if request.sent_s >= self.warm_s:
            self.times_ms[request.lane].append((now_s - request.sent_s) * 1e3)


class Callers:
    """Sends requests at random times (Poisson), or keeps some always in flight."""

    def __init__(self, clock: Clock, fleet: Fleet, seen: Seen, seed: int) -> None:
        self._clock, self._fleet, self._seen = clock, fleet, seen
        self._random = random.Random(seed)

    def poisson(self, lane: Lane, count: int, tokens: int, per_s: float) -> None:
        """Requests of `count` sequences of `tokens`, `per_s` of them a second on average."""

        def send() -> None:
            self._fleet.send(self._request(lane, count, tokens))
            self._clock.after(self._random.expovariate(per_s), send)

        self._clock.after(self._random.expovariate(per_s), send)

    def saturate(self, lane: Lane, count: int, tokens: int, in_flight: int) -> None:
        """The next request as soon as one is finished: there is always more."""

        def again(request: Request, now_s: float) -> None:
            self._seen.finished(request, now_s)
            self._fleet.send(self._request(lane, count, tokens, again))

        for _ in range(in_flight):
            self._fleet.send(self._request(lane, count, tokens, again))

    def _request(self, lane: Lane, count: int, tokens: int, finished: object = None) -> Request:
        done = finished or self._seen.finished
        return Request(lane, self._clock.now_s, (tokens,) * count, done)  # pyright: ignore
