"""What the system adds to the engine: a short query over HTTP, over NATS, and the bare step.

Medians of one run on the same token ids, taken in turns: while one is timed, the others are
idle. The engine runs in a process of its own with the settings of a worker. Beside them a second
system whose gateways live in its workers (`--together`), and the bare chain (`benchmarks.bare`):
the least that a path of separate processes costs on this machine.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks import server
from benchmarks.bare import EMBED, bare_chain
from benchmarks.clients import aio
from benchmarks.clients.bus import RawNats
from benchmarks.engine.contender import Contender, ContenderError
from benchmarks.harness import say
from benchmarks.reference import save_ragged
from benchmarks.rows import Row, percentiles
from benchmarks.suites.context import LENGTHS, MINILM, Bench
from benchmarks.target import Target, good

SUITE = "overhead"
TOGETHER = "--together"
TOKENS = 16
ROUNDS, PER_ROUND = 5, 200
QUICK_ROUNDS, QUICK_PER_ROUND = 2, 50

Timed = dict[str, list[float]]


def run(bench: Bench, folder: Path, flags: Sequence[str]) -> list[Row]:
    """Rows for HTTP, NATS (bare socket and nats-py) and the engine, with the differences.

    flags: of `hedgerow up`, for the second system
    """
    rounds, count = (QUICK_ROUNDS, QUICK_PER_ROUND) if bench.quick else (ROUNDS, PER_ROUND)
    ids = bench.pool.ids(TOKENS, 64, seed=77)
    engine = Contender("engine", _engine_ask(folder), Path(sys.executable))
    times: Timed = {}
    with (
        tempfile.TemporaryDirectory() as scratch,
        bare_chain(folder, LENGTHS[MINILM]) as bare,
        server.hedgerow({MINILM: folder}, lengths=LENGTHS, flags=[*flags, TOGETHER]) as near,
    ):
        try:
            engine.open()
            say(f"overhead: engine {engine.facts.get('executor')} {engine.facts.get('dtype')}")
            ways = _ways(bench, near, bare, ids, engine, Path(scratch))
            for number in range(rounds + 1):
                for name, way in ways.items():
                    found = way(count)
                    if number:  # the first round warms everything up
                        times.setdefault(name, []).extend(found)
        finally:
            engine.close()
    return _rows(bench, times, engine.facts)


def _engine_ask(folder: Path) -> dict[str, Any]:
    return {"engine": "hedgerow", "model": str(folder), "threads": 1, "length": LENGTHS[MINILM]}


def _ways(
    bench: Bench,
    near: Target,
    bare: Target,
    ids: Sequence[npt.NDArray[np.int32]],
    engine: Contender,
    scratch: Path,
) -> dict[str, Callable[[int], list[float]]]:
    """name -> a function that takes so many samples. The engine is called with the same gap a
    sequential client leaves it: it is idle while answer and next request travel."""
    target = bench.target
    subject = f"hedgerow.v1.embed.{target.called(MINILM)}"
    file = scratch / "ids.npz"
    save_ragged(file, ids[:1])

    def step(gap_ms: float) -> Callable[[int], list[float]]:
        ask = {"do": "time", "case": str(file), "seconds": 30, "at_least": 3, "warm_up": 3}
        return lambda count: engine.call(samples=count, gap_ms=gap_ms, **ask)["times_ms"]

    bodies = [target.body(MINILM, [one]) for one in ids]
    try:
        return {
            "engine step": step(0),
            "engine step, every 1 ms": step(1.0),
            "HTTP": _over_http(target, ids),
            "HTTP, together": _over_http(near, ids),
            "HTTP, bare chain": _over_http(bare, ids),
            "NATS": _over_nats(target, subject, ids),
            "NATS, together": _over_nats(near, subject, ids),
            "NATS, bare chain": _over_nats(bare, EMBED, ids),
            "NATS by nats-py": lambda n: aio.run(_nats_py(target.nats_url, subject, bodies, n)),
        }
    except ContenderError as error:
        raise RuntimeError(str(error)) from error


def _over_http(target: Target, ids: Sequence[Any]) -> Callable[[int], list[float]]:
    requests = [target.request(MINILM, [one]) for one in ids]

    def take(count: int) -> list[float]:
        with target.client() as client:
            return _times(lambda i: good(client.exchange(requests[i % len(ids)])), count)

    return take


def _over_nats(target: Target, subject: str, ids: Sequence[Any]) -> Callable[[int], list[float]]:
    bodies = [target.body(MINILM, [one]) for one in ids]

    def take(count: int) -> list[float]:
        client = RawNats(target.nats_url)
        try:
            return _times(lambda i: _answered(client.request(subject, bodies[i % len(ids)])), count)
        finally:
            client.close()

    return take


def _times(call: Callable[[int], object], count: int) -> list[float]:
    times: list[float] = []
    for i in range(count + 5):
        start = time.perf_counter()
        call(i)
        times.append((time.perf_counter() - start) * 1e3)
    return times[5:]


def _answered(reply: Any) -> None:
    if reply.error or b'"data"' not in reply.data:
        raise RuntimeError(f"NATS answered {reply.error or reply.data[:200]}")


async def _nats_py(url: str, subject: str, bodies: Sequence[bytes], count: int) -> list[float]:
    import nats

    client = await nats.connect(url, allow_reconnect=False)
    times: list[float] = []
    for i in range(count + 5):
        start = time.perf_counter()
        reply = await client.request(subject, bodies[i % len(bodies)], timeout=30)
        times.append((time.perf_counter() - start) * 1e3)
        if "data" not in json.loads(reply.data):
            raise RuntimeError(f"NATS answered {reply.data[:200]!r}")
        await asyncio.sleep(0)
    await client.close()
    return times[5:]


def _rows(bench: Bench, times: Timed, facts: Any) -> list[Row]:
    """One line per way; `over the engine` is the difference of medians to the bare step, `of the
    bare chain` the ratio of two such differences."""
    step = statistics.median(times["engine step"])
    rows: list[Row] = []
    for name, found in times.items():
        extra: dict[str, float | str] = {}
        if not name.startswith("engine"):
            over = extra["over the engine ms"] = statistics.median(found) - step
            floor = times.get(f"{name.partition(',')[0]}, bare chain")
            if floor is not None and floor is not found:
                extra["of the bare chain"] = over / (statistics.median(floor) - step)
        extra["executor"] = facts.get("executor", "")
        row = bench.row(
            SUITE,
            f"1x{TOKENS}: {name}",
            "ms",
            len(found),
            model=MINILM,
            extra=extra,
            **percentiles(found),
        )
        rows.append(row)
    return rows
