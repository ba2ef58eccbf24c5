"""Suite E, queries beside a re-index: what each costs the other on the same workers.

Queries arrive at random times at a fixed rate (an open loop: a slow answer delays no later
query, and a query's time runs from when it was due). Bulk saturates the workers meanwhile.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from benchmarks.clients import aio
from benchmarks.harness import say
from benchmarks.rows import Row, percentiles
from benchmarks.suites.bulk import BulkLoad, bulk_load
from benchmarks.suites.context import MINILM, Bench
from benchmarks.target import good

SUITE = "E re-index"
QUERY_TOKENS = 16
QUERY_SHARE = 0.10
"""Share of the machine's tokens that queries take: their rate follows from bulk's own rate."""


@dataclass(slots=True)
class Queries:
    """What the paced queries saw."""

    times_ms: list[float] = field(default_factory=list)
    failed: int = 0


def run(bench: Bench, price_per_hour: float) -> list[Row]:
    """Bulk alone, queries alone, both together: four lines, the last two with what they kept."""
    seconds = 2.0 if bench.quick else 20.0
    load = bulk_load(bench)
    say(f"suite E: bulk is {load.how}")
    alone = _beside(load, seconds, lambda: time.sleep(seconds))
    rate = max(2.0, alone * QUERY_SHARE / QUERY_TOKENS)
    requests = _queries(bench)
    lone = _ask(bench, requests, rate, seconds)
    both = Queries()

    def ask() -> None:
        nonlocal both
        both = _ask(bench, requests, rate, seconds)

    beside = _beside(load, seconds, ask)
    name = f"bulk by {load.how}"
    paced: dict[str, float] = {"queries/s": float(round(rate))}
    kept = {"kept": beside / alone, **paced}
    return [
        _query_row(bench, "queries alone", lone, paced),
        _query_row(bench, f"queries beside {name}", both, _against(lone, both) | paced),
        _bulk_row(bench, f"{name}, alone", alone, price_per_hour, {}),
        _bulk_row(bench, f"{name}, beside queries", beside, price_per_hour, kept),
    ]


def _queries(bench: Bench) -> list[bytes]:
    inputs = bench.inputs(QUERY_TOKENS, 2000, seed=9)
    return [bench.target.request(MINILM, [one]) for one in inputs]


def _beside(load: BulkLoad, seconds: float, during: Callable[[], None]) -> float:
    """Bulk tokens per second in a window of `seconds` while `during` runs."""
    load.start(seconds + 4)
    try:
        load.wait_flowing()
        began = time.perf_counter()
        worker = threading.Thread(target=during)
        worker.start()
        time.sleep(seconds)
        ended = time.perf_counter()
        worker.join()
    finally:
        load.stop()
    return load.tokens_between(began, ended) / (ended - began)


def _ask(bench: Bench, requests: Sequence[bytes], rate: float, seconds: float) -> Queries:
    return aio.run(open_loop(bench.target.host, bench.target.port, requests, rate, seconds))


async def open_loop(
    host: str, port: int, requests: Sequence[bytes], rate: float, seconds: float
) -> Queries:
    """Send requests at Poisson times of `rate` per second; wait for all of them."""
    gaps = np.random.default_rng(3).exponential(1 / rate, max(1, int(rate * seconds)))
    due_s = np.cumsum(gaps)
    pool, seen = aio.HttpPool(host, port), Queries()
    await asyncio.gather(*(pool.exchange(request) for request in requests[:8]))
    start = time.perf_counter()

    async def one(request: bytes, due: float) -> None:
        try:
            good(await pool.exchange(request))
        except Exception as error:
            seen.failed += 1
            if seen.failed == 1:
                say(f"suite E: a query failed: {error}")
            return
        seen.times_ms.append((time.perf_counter() - due) * 1e3)

    async with asyncio.TaskGroup() as tasks:
        for number, offset in enumerate(due_s):
            await asyncio.sleep(0)
            # A timer may fire early by its clock's resolution; a query must not.
            while (left_s := start + offset - time.perf_counter()) > 0:
                await asyncio.sleep(left_s)
            tasks.create_task(one(requests[number % len(requests)], start + float(offset)))
    pool.close()
    return seen


def _against(lone: Queries, both: Queries) -> dict[str, float]:
    """How the p99 beside bulk compares with the lone one: the promise is 3x at most."""
    if not lone.times_ms or not both.times_ms:
        return {}
    before, after = percentiles(lone.times_ms)["p99"], percentiles(both.times_ms)["p99"]
    return {"p99 / lone p99": after / before, "p99 - lone p99 ms": after - before}


def _query_row(bench: Bench, case: str, seen: Queries, extra: dict[str, float]) -> Row:
    if not seen.times_ms:
        raise RuntimeError(f"suite E: none of the {seen.failed} queries was answered")
    return bench.row(
        SUITE,
        case,
        "ms",
        len(seen.times_ms),
        model=MINILM,
        extra=extra,
        note=f"{seen.failed} failed" if seen.failed else "",
        **percentiles(seen.times_ms),
    )


def _bulk_row(
    bench: Bench, case: str, rate: float, price_per_hour: float, extra: dict[str, float]
) -> Row:
    cost = price_per_hour / 3600 / rate * 1e6 if rate else float("inf")
    return bench.row(
        SUITE,
        case,
        "tokens/s",
        1,
        rate=rate,
        model=MINILM,
        extra={**extra, "$ per 1M tokens": cost},
        note=f"at ${price_per_hour:.2f} an hour",
    )
