"""A query's latency beside requests of 5,000 documents through the same gateways.

The engine is fake and nearly free (see `_FREE`), so what is left is the gateway: reading 3 MB of
JSON, tokenizing, and writing the answer, all of it while queries come and go. The large requests
are sent without a pause by a process of their own. As a control, the same queries run beside
loops that keep every core busy and have nothing to do with us: what those add is the machine's.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from pathlib import Path

from benchmarks import models
from benchmarks.fleet import fake_fleet
from benchmarks.harness import say
from benchmarks.machine import ROOT
from benchmarks.rows import Row, percentiles
from benchmarks.suites.context import MINILM
from benchmarks.target import Target, good
from benchmarks.text import Pool, standard_text

SUITE = "large requests"
DOCUMENTS, WORDS_TOKENS, QUERY_TOKENS = 5000, 100, 16
ROUNDS, SECONDS, QUICK_SECONDS = 6, 5.0, 1.0
_FREE = ("--bulk-pass-tokens", "8192", "--bulk-pass-busy-tokens", "2048", "--fill", "off")
"""Passes as large as those of a GPU, whose speed this device has, and none of them a query's."""
PER_CONNECTION = 25
"""With several gateways on one port a connection decides which of them serves it."""


def run(*, quick: bool) -> list[Row]:
    """Three lines (alone, beside large requests, beside busy cores) for one gateway and for two."""
    folder = models.folder(models.MINILM)
    pool = Pool(folder / "tokenizer.json", standard_text())
    texts = pool.texts(WORDS_TOKENS, 500, seed=5)
    documents = [f"{text} {i}" for i, text in enumerate(texts * (DOCUMENTS // len(texts)))]
    seconds = QUICK_SECONDS if quick else SECONDS
    rows: list[Row] = []
    for gateways in (1, 2):
        alone, beside, control, count = list[float](), list[float](), list[float](), 0
        with fake_fleet(
            folder, 1, ms_per_4096=0.1, floor_ms=0.1, gateways=gateways, worker_flags=_FREE
        ) as fleet:
            queries = [
                fleet.target.request(MINILM, [text]) for text in pool.texts(QUERY_TOKENS, 64)
            ]
            # In turns: within a minute a host becomes a third faster or slower.
            for _ in range(2 if quick else ROUNDS):
                alone += _queries(fleet.target, queries, seconds)
                times, served = _beside(fleet.target, documents, queries, seconds)
                beside, count = beside + times, count + served
                with _busy_cores():
                    control += _queries(fleet.target, queries, seconds)
        rows += _rows(gateways, alone, beside, control, count)
    return rows


def _queries(target: Target, requests: list[bytes], seconds: float) -> list[float]:
    """Milliseconds of one query after the other, each a millisecond after the last answer."""
    times: list[float] = []
    end_s = time.perf_counter() + seconds
    while time.perf_counter() < end_s:
        with target.client() as client:
            good(client.exchange(requests[0]))
            for i in range(PER_CONNECTION):
                time.sleep(0.001)
                start_s = time.perf_counter()
                good(client.exchange(requests[(len(times) + i) % len(requests)]))
                times.append((time.perf_counter() - start_s) * 1e3)
    return times


def _beside(
    target: Target, documents: list[str], requests: list[bytes], seconds: float
) -> tuple[list[float], int]:
    """The same while large requests are served, and how many of those were."""
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "request"
        file.write_bytes(target.request(MINILM, documents))
        command = [sys.executable, "-m", "benchmarks.large", target.host, str(target.port)]
        other = subprocess.Popen(
            [*command, str(file)], cwd=ROOT, stdout=subprocess.PIPE, stdin=subprocess.PIPE
        )
        assert other.stdin is not None and other.stdout is not None
        try:
            other.stdout.readline()  # the first one is done: everything is warm
            times = _queries(target, requests, seconds)
        finally:
            other.stdin.close()
            count = len(other.stdout.read().splitlines())
            other.wait(60)
    return times, count


@contextlib.contextmanager
def _busy_cores() -> Generator[None, None, None]:
    """A loop for each core."""
    command = [sys.executable, "-c", "while True: pass"]
    loops = [subprocess.Popen(command) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def _send(host: str, port: str, file: str) -> None:
    """The other process: one large request after the other, a line for each, until stdin ends."""
    import select

    request = Path(file).read_bytes()
    while not select.select([sys.stdin], [], [], 0)[0]:
        with socket.create_connection((host, int(port)), timeout=600) as connection:
            connection.sendall(request)
            _count(connection)
        print("done", flush=True)


def _count(connection: socket.socket) -> None:
    """Read one answer and keep none of it: a client that copies ten megabytes about takes a core
    from the queries, and does so on another machine."""
    head = connection.recv(4096)
    while b"\r\n\r\n" not in head:
        head += connection.recv(4096)
    fields, _, rest = head.partition(b"\r\n\r\n")
    if not fields.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(f"a large request failed: {head[:500]!r}")
    left = int(fields.lower().split(b"content-length:")[1].split(b"\r\n")[0]) - len(rest)
    room = bytearray(64 * 1024)
    while left > 0:
        got = connection.recv_into(room)
        if not got:
            raise ConnectionResetError("the server closed the connection before answering")
        left -= got


def _rows(
    gateways: int, alone: list[float], beside: list[float], control: list[float], count: int
) -> list[Row]:
    name = f"{gateways} gateway{'s' if gateways > 1 else ''}"
    quiet = percentiles(alone)["p99"]
    rows: list[Row] = []
    for case, times in (
        (f"query, {name}", alone),
        (f"query beside {DOCUMENTS} documents, {name}", beside),
        (f"query beside a busy loop on each core, {name}", control),
    ):
        p99, extra = percentiles(times)["p99"], dict[str, float]()
        if times is not alone:
            extra["p99 added ms"] = p99 - quiet
        if times is beside:
            extra["large requests"] = count
        say(f"{SUITE}: {case}: p99 {p99:.2f} ms")
        rows.append(_row(case, times, extra))
    return rows


def _row(case: str, times: list[float], extra: dict[str, float]) -> Row:
    return Row(
        suite=SUITE,
        case=case,
        engine="fake",
        unit="ms",
        samples=len(times),
        extra=dict(extra),
        **percentiles(times),
    )


if __name__ == "__main__":
    _send(*sys.argv[1:])
