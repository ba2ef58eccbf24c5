"""Ways to keep the workers saturated with bulk work, behind one interface."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from benchmarks.clients.http import HttpClient
from benchmarks.harness import say
from benchmarks.suites.context import MINILM, Bench
from benchmarks.target import good

SEQUENCES, TOKENS, SENDERS = 48, 256, 4
"""More than 8,192 tokens a request, so that the gateway sends it on the bulk lane."""


class BulkLoad(Protocol):
    """Bulk that keeps coming between `start` and `stop`. `how` goes into the rows."""

    how: str

    def start(self, seconds: float) -> None:
        """Begin, for `seconds` at most: the load ends by itself if nobody stops it."""
        ...

    def wait_flowing(self) -> None:
        """Return once the first work came back. Raises RuntimeError when none does."""
        ...

    def stop(self) -> None: ...

    def tokens_between(self, began: float, ended: float) -> float:
        """Tokens answered in a window of time.perf_counter(); a request that overlaps the
        window's edge counts in proportion."""
        ...


def bulk_load(bench: Bench) -> BulkLoad:
    """The best bulk lane the server has."""
    inputs = bench.inputs(TOKENS, SEQUENCES * SENDERS * 4, seed=5)
    groups = [inputs[i : i + SEQUENCES] for i in range(0, len(inputs), SEQUENCES)]
    requests = [bench.target.request(MINILM, group) for group in groups]
    return HttpBatches(bench.target.host, bench.target.port, requests)


@dataclass(slots=True)
class HttpBatches:
    """Plain HTTP requests of `sequences` x `tokens` from four callers.

    The callers are threads: they wait for the server nearly all the time, and a request is
    built once and sent many times.
    """

    host: str
    port: int
    requests: Sequence[bytes]
    sequences: int = SEQUENCES
    tokens: int = TOKENS
    how: str = f"plain HTTP batches of {SEQUENCES}x{TOKENS}"
    _threads: list[threading.Thread] = field(default_factory=list)
    _done: list[tuple[float, float]] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)
    _failed: str = ""

    def start(self, seconds: float) -> None:
        self._done, self._stop, self._failed = [], threading.Event(), ""
        until = time.perf_counter() + seconds
        self._threads = [
            threading.Thread(target=self._send, args=(self.requests[i::SENDERS], until))
            for i in range(SENDERS)
        ]
        for thread in self._threads:
            thread.start()

    def wait_flowing(self) -> None:
        end = time.perf_counter() + 60
        while not self._done:
            if self._failed or time.perf_counter() > end:
                raise RuntimeError(f"bulk does not flow: {self._failed or 'no answer in 60 s'}")
            time.sleep(0.01)

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        if self._failed:
            say(f"bulk: {self._failed}")

    def tokens_between(self, began: float, ended: float) -> float:
        inside = [
            max(0.0, min(end, ended) - max(start, began)) / (end - start)
            for start, end in self._done
        ]
        return sum(inside) * self.sequences * self.tokens

    def _send(self, requests: Sequence[bytes], until: float) -> None:
        turn = 0
        with HttpClient(self.host, self.port) as client:
            while not self._stop.is_set() and time.perf_counter() < until:
                start = time.perf_counter()
                try:
                    response = client.exchange(requests[turn % len(requests)])
                    if response.status == 429:
                        time.sleep(float(response.header("retry-after-ms") or 200) / 1e3)
                        continue
                    good(response)
                except Exception as error:
                    self._failed = f"{type(error).__name__}: {error}"
                    return
                self._done.append((start, time.perf_counter()))
                turn += 1
