"""`python -m benchmarks scaling`: do more workers take more load, and where does one gateway end?

The engine is fake: it sleeps as a device would work (16 ms per 4,096 tokens, 2 ms at least), so
that eight of them fit on two cores. All other parts are the real processes.
"""

from __future__ import annotations

import pstats
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from benchmarks import models
from benchmarks.clients import aio
from benchmarks.fleet import Fleet, fake_fleet
from benchmarks.harness import say
from benchmarks.rows import Row, percentiles
from benchmarks.suites import reindex
from benchmarks.suites.bulk import HttpBatches
from benchmarks.suites.concurrency import closed_loop
from benchmarks.suites.context import Bench
from benchmarks.text import Pool, standard_text

SUITE = "scaling (fake engine)"
SEQUENCES, TOKENS = 100, 512
CALLERS_PER_WORKER = 2
"""Enough that no worker waits for a caller who reads his last answer."""
PEAK_TOKENS_PER_S = 4096 / 16e-3
"""What one fake device does when it never waits."""
LIKE_GPUS = ("--budget-tokens", "4096", "--bulk-pass-tokens", "4096")
"""A pass of 16 ms. Passes of 2 ms, a CPU's default, measure how soon 8 sleepers wake on 2 cores."""
SLOW_MS, PRICE_PER_HOUR = 400.0, 0.10


def run(*, quick: bool) -> list[Row]:
    """Bulk throughput of 1, 2, 4, 8 workers, queries beside bulk, then the ceiling of one gateway
    and its profile."""
    folder = models.minilm_folder()
    pool = Pool(folder / "tokenizer.json", standard_text())
    seconds = 3.0 if quick else 10.0
    rows: list[Row] = []
    for workers in (1, 2) if quick else (1, 2, 4, 8):
        with fake_fleet(folder, workers, worker_flags=LIKE_GPUS) as fleet:
            rate, used = _bulk(fleet, pool, seconds, workers)
        one = (rows[0].rate or rate) if rows else rate
        extra = {
            "of linear": rate / (one * workers),
            "of the devices' peak": rate / workers / PEAK_TOKENS_PER_S,
        }
        rows.append(_rate_row(f"bulk, {workers} workers", "tokens/s", rate, {**extra, **used}))
    rows += _beside(folder, pool, quick)
    return [*rows, *_ceiling(folder, pool, seconds), *_profile(folder, pool, seconds)]


def _beside(folder: Path, pool: Pool, quick: bool) -> list[Row]:
    """Suite E on two fake devices as slow as CPU workers, and scheduled like them (`--fill off`):
    what is lost is the scheduling's, since the devices leave the cores to everybody else."""
    like_cpus = ("--fill", "off")
    with fake_fleet(folder, 2, ms_per_4096=SLOW_MS, floor_ms=1.0, worker_flags=like_cpus) as fleet:
        bench = Bench(target=fleet.target, pool=pool, quick=quick, suite_prefix="fake engine: ")
        return reindex.run(bench, PRICE_PER_HOUR)


def _ceiling(folder: Path, pool: Pool, seconds: float) -> list[Row]:
    """One gateway against devices that cost nothing: the most it can pass on."""
    with fake_fleet(folder, 2, ms_per_4096=0, floor_ms=0) as fleet:
        tokens, used = _bulk(fleet, pool, seconds, 2)
        rows = [_rate_row("ceiling of one gateway: bulk", "tokens/s", tokens, used)]
        before, began = fleet.cpu_s(), time.perf_counter()
        times = _short(fleet, pool, seconds)
        wall_s = time.perf_counter() - began
        used = _cores(before, fleet.cpu_s(), wall_s)
    rate = len(times) / wall_s
    case = "ceiling of one gateway: 1x16, 64 at a time"
    rows.append(_rate_row(case, "requests/s", rate, used, len(times)))
    spread = percentiles(times)
    rows.append(
        Row(suite=SUITE, case=case, engine="hedgerow", unit="ms", samples=len(times), **spread)
    )
    return rows


def _profile(folder: Path, pool: Pool, seconds: float) -> list[Row]:
    """Shares of the gateway's own CPU time by package, for short requests and for bulk.

    cProfile slows Python down more than C, so the shares lean towards Python.
    """
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as scratch:
        for case in ("1x16, 64 at a time", "bulk"):
            file = Path(scratch) / "profile"
            with fake_fleet(folder, 2, ms_per_4096=0, floor_ms=0, profile=file) as fleet:
                if case == "bulk":
                    _bulk(fleet, pool, seconds, 2)
                else:
                    _short(fleet, pool, seconds)
            shares = profile_shares(file)
            say(f"gateway profile, {case}: {shares}")
            rows.append(
                Row(
                    suite=SUITE,
                    case=f"gateway CPU by package: {case}",
                    engine="hedgerow",
                    unit="share",
                    samples=1,
                    extra=shares,
                    note="cProfile on, waiting left out",
                )
            )
    return rows


def profile_shares(file: Path) -> dict[str, float]:
    """package -> share of the time spent in its own functions; under 2 % is `other`."""
    spent: dict[str, float] = {}
    entries = pstats.Stats(str(file)).stats.items()  # pyright: ignore
    for (name, _, function), (_, _, own_s, _, _) in entries:
        if _is_left_out(name, function):
            continue
        package = _package(name, function)
        spent[package] = spent.get(package, 0.0) + own_s
    total = sum(spent.values()) or 1.0
    shares = {name: own_s / total for name, own_s in spent.items()}
    large = {n: s for n, s in sorted(shares.items(), key=lambda x: -x[1]) if s >= 0.02}
    return {**large, "other": 1 - sum(large.values())}


def _is_left_out(file: str, function: str) -> bool:
    """Waiting is no CPU time, and loading modules at start is not the work that is measured."""
    words = ("select.epoll", "acquire", "time.sleep", "marshal", "_imp.", "__build_class__")
    return "importlib" in file or any(word in function for word in words)


def _package(file: str, function: str) -> str:
    """The package a profiled function belongs to, from its file or, for C code, its name."""
    parts = Path(file).parts
    if "site-packages" in parts:
        return parts[parts.index("site-packages") + 1].removesuffix(".py")
    for part in parts:
        if part.startswith("hedgerow_"):
            return part
    if file == "~":
        for name in ("uvloop", "orjson", "msgspec", "tokenizers", "aiohttp", "numpy", "msgpack"):
            if name in function:
                return name
        return f"C: {function.strip('<>').split(' of ')[0].removeprefix('built-in method ')}"
    return f"python's {Path(file).parent.name if 'asyncio' in parts else Path(file).stem}"


def _bulk(fleet: Fleet, pool: Pool, seconds: float, workers: int) -> tuple[float, dict[str, float]]:
    """Tokens per second of bulk requests, and the cores each role kept busy meanwhile."""
    callers = CALLERS_PER_WORKER * workers
    inputs = pool.ids(TOKENS, SEQUENCES * callers, seed=6)
    groups = [inputs[i : i + SEQUENCES] for i in range(0, len(inputs), SEQUENCES)]
    target = fleet.target
    requests = [target.request("minilm", group) for group in groups]
    load = HttpBatches(
        target.host, target.port, requests, sequences=SEQUENCES, tokens=TOKENS, senders=callers
    )
    load.start(seconds + 5)
    try:
        load.wait_flowing()
        before, began = fleet.cpu_s(), time.perf_counter()
        threading.Event().wait(seconds)
        after, ended = fleet.cpu_s(), time.perf_counter()
    finally:
        load.stop()
    return load.tokens_between(began, ended) / (ended - began), _cores(before, after, ended - began)


def _short(fleet: Fleet, pool: Pool, seconds: float) -> list[float]:
    ids = pool.ids(16, 2000, seed=8)
    requests = [fleet.target.request("minilm", [one]) for one in ids]
    times, _ = aio.run(
        closed_loop(
            fleet.target.host,
            fleet.target.port,
            requests,
            level=64,
            samples=1_000_000,
            seconds=seconds,
            warm_up=2,
        )
    )
    return times


def _cores(
    before: Mapping[str, float], after: Mapping[str, float], wall_s: float
) -> dict[str, float]:
    return {f"{role} cores": (after[role] - before[role]) / wall_s for role in before}


def _rate_row(
    case: str, unit: str, rate: float, extra: Mapping[str, float], samples: int = 1
) -> Row:
    say(f"{case}: {rate:,.0f} {unit} { ({k: round(v, 2) for k, v in extra.items()}) }")
    return Row(
        suite=SUITE,
        case=case,
        engine="hedgerow",
        unit=unit,
        samples=samples,
        rate=rate,
        extra=extra,
    )
