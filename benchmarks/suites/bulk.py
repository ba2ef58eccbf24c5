"""Ways to keep the workers saturated with bulk work, behind one interface."""

from __future__ import annotations

import contextlib
import json
import secrets
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from benchmarks.clients.http import HttpClient, delete, get
from benchmarks.harness import say
from benchmarks.suites.context import MINILM, Bench
from benchmarks.target import Input, Target, good

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
    """A job on the server's durable lane; large HTTP requests where it has none."""
    inputs = bench.inputs(TOKENS, SEQUENCES * SENDERS * 4, seed=5)
    target = bench.target
    if has_jobs(target):
        return JobLoad(target, inputs)
    groups = [inputs[i : i + SEQUENCES] for i in range(0, len(inputs), SEQUENCES)]
    requests = [target.request(MINILM, group) for group in groups]
    return HttpBatches(target.host, target.port, requests)


def has_jobs(target: Target) -> bool:
    """True when `/v1/bulk` is there: it answers an empty submission with 400, not with 404."""
    with target.client() as client:
        return client.exchange(target.post("/v1/bulk", b"{}")).status == 400


@dataclass(slots=True)
class JobLoad:
    """A bulk job that always has rows waiting: what a re-index is.

    Tokens are counted by the job's own progress, read four times a second: a row counts when
    its vector is stored.
    """

    target: Target
    inputs: Sequence[Input]
    how: str = f"a job on the durable lane, rows of {TOKENS} tokens"
    _thread: threading.Thread | None = None
    _progress: list[tuple[float, int]] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)
    _failed: str = ""

    def start(self, seconds: float) -> None:
        self._progress, self._stop, self._failed = [], threading.Event(), ""
        job, until = f"bench-{secrets.token_hex(6)}", time.perf_counter() + seconds
        self._thread = threading.Thread(target=self._run, args=(job, until))
        self._thread.start()

    def wait_flowing(self) -> None:
        end = time.perf_counter() + 60
        while not (self._progress and self._progress[-1][1]):
            if self._failed or time.perf_counter() > end:
                raise RuntimeError(f"bulk does not flow: {self._failed or 'no result in 60 s'}")
            time.sleep(0.01)

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        if self._failed:
            say(f"bulk: {self._failed}")

    def tokens_between(self, began: float, ended: float) -> float:
        times, rows = [t for t, _ in self._progress], [n for _, n in self._progress]
        first, last = (float(np.interp(moment, times, rows)) for moment in (began, ended))
        return (last - first) * TOKENS

    def _run(self, job: str, until: float) -> None:
        """Keep several seconds of rows waiting; cancel what is left at the end."""
        with self.target.client() as client:
            try:
                self._submit_and_watch(client, job, until)
            except Exception as error:
                self._failed = f"{type(error).__name__}: {error}"
            with contextlib.suppress(OSError):
                client.exchange(delete(self.target.host, f"/v1/jobs/{job}"))

    def _submit_and_watch(self, client: HttpClient, job: str, until: float) -> None:
        submitted, done = 0, 0
        look = get(self.target.host, f"/v1/jobs/{job}")
        while not self._stop.is_set() and time.perf_counter() < until:
            while submitted - done < SEQUENCES * SENDERS * 4:
                good(client.exchange(self._part(job, submitted)))
                submitted += SEQUENCES
            answer = json.loads(good(client.exchange(look)))
            done = int(answer["done"])
            self._progress.append((time.perf_counter(), done))
            if answer["failed"]:
                raise RuntimeError(f"{answer['failed']} rows of the job failed")
            self._stop.wait(0.25)

    def _part(self, job: str, start: int) -> bytes:
        """A submission of the next rows; inputs come round again, the names of rows do not."""
        rows: list[dict[str, Any]] = []
        for number in range(start, start + SEQUENCES):
            one = self.inputs[number % len(self.inputs)]
            given = {"text": one} if isinstance(one, str) else {"token_ids": one.tolist()}
            rows.append({"id": number, **given})
        body = {"model": self.target.called(MINILM), "job": job, "rows": rows}
        return self.target.post("/v1/bulk", json.dumps(body, separators=(",", ":")).encode())


@dataclass(slots=True)
class HttpBatches:
    """Plain HTTP requests of `sequences` x `tokens` from `senders` callers.

    The callers are threads: they wait for the server nearly all the time, and a request is
    built once and sent many times.
    """

    host: str
    port: int
    requests: Sequence[bytes]
    sequences: int = SEQUENCES
    tokens: int = TOKENS
    how: str = f"plain HTTP batches of {SEQUENCES}x{TOKENS}"
    senders: int = SENDERS
    _threads: list[threading.Thread] = field(default_factory=list)
    _done: list[tuple[float, float]] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)
    _failed: str = ""

    def start(self, seconds: float) -> None:
        self._done, self._stop, self._failed = [], threading.Event(), ""
        until = time.perf_counter() + seconds
        self._threads = [
            threading.Thread(target=self._send, args=(self.requests[i :: self.senders], until))
            for i in range(self.senders)
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
