"""Suite D, high concurrency: texts of about 512 tokens, 1 to 16 at a time, tokenizing included."""

from __future__ import annotations

import asyncio
import itertools
import time

from benchmarks.clients import aio
from benchmarks.rows import Row, percentiles
from benchmarks.suites.context import MINILM, Bench
from benchmarks.target import good

SUITE = "D concurrency"
LEVELS = (1, 2, 4, 8, 16)
TOKENS = 512


def run(bench: Bench) -> list[Row]:
    texts = bench.pool.texts(TOKENS, 256, seed=4)
    requests = [bench.target.request(MINILM, [text]) for text in texts]
    return [_level(bench, requests, level) for level in LEVELS]


def _level(bench: Bench, requests: list[bytes], level: int) -> Row:
    limits = bench.limits(100 + 40 * level, 12.0)
    times, wall_s = aio.run(
        closed_loop(
            bench.target.host,
            bench.target.port,
            requests,
            level=level,
            samples=limits.samples,
            seconds=limits.seconds,
            warm_up=limits.warm_up,
        )
    )
    return bench.row(
        SUITE,
        f"{level} at a time, text of ~{TOKENS} tokens",
        "ms",
        len(times),
        **percentiles(times),
        model=MINILM,
        extra={"requests/s": round(len(times) / wall_s, 1)},
    )


async def closed_loop(
    host: str,
    port: int,
    requests: list[bytes],
    *,
    level: int,
    samples: int,
    seconds: float,
    warm_up: int,
) -> tuple[list[float], float]:
    """`level` callers, each sending its next request when the last was answered.

    Returns (milliseconds of every request, seconds of wall time), warm-up left out.
    """
    pool, turn, times = aio.HttpPool(host, port), itertools.cycle(requests), []
    for _ in range(warm_up):
        await asyncio.gather(*(pool.exchange(next(turn)) for _ in range(level)))
    started = time.perf_counter()

    async def caller() -> None:
        while len(times) < samples and time.perf_counter() - started < seconds:
            begin = time.perf_counter()
            good(await pool.exchange(next(turn)))
            times.append((time.perf_counter() - begin) * 1e3)

    await asyncio.gather(*(caller() for _ in range(level)))
    wall_s = time.perf_counter() - started
    pool.close()
    return times, wall_s
