"""`python -m benchmarks simulate`: the tables of docs/simulation.md.

The numbers depend on the model and the seed alone, not on the machine, so they can be
compared between commits: a change of packer or splitter shows as a changed table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from benchmarks.harness import say
from benchmarks.rows import Row, percentiles
from benchmarks.simulator.clock import Clock
from benchmarks.simulator.device import CPU, GPU, DeviceModel
from benchmarks.simulator.fleet import Dispatch, Fleet
from benchmarks.simulator.traffic import (
    BULK_DOCUMENTS,
    DOCUMENT_TOKENS,
    QUERY_TOKENS,
    SHORT_TEXTS,
    SHORT_TOKENS,
    Callers,
    Seen,
)
from benchmarks.simulator.write import write_docs
from hedgerow_gateway.splitter import EMBED, ChunkLimits, bulk_limits
from hedgerow_scheduler.packer import Policy
from hedgerow_shared.ragged import Lane

SUITE = "simulator"
GPU_POLICY = Policy(fill=True, bulk_pass=512, bulk_pass_busy=512)
CPU_POLICY = Policy(fill=False)
QUERIES_PER_BULK = 200

CENTRAL = Dispatch(name="ideal: one central queue", online="central", lanes=False)
CENTRAL_LANES = Dispatch(name="ideal: one central queue, lanes", online="central")
PULL = Dispatch(name="online random, bulk pulled, lanes", pull=True)
WINDOW = Dispatch(name="all random, lanes, window (large HTTP requests)", window_tokens=16_384)
POLICIES = (
    CENTRAL,
    Dispatch(name="all random", lanes=False),
    CENTRAL_LANES,
    Dispatch(name="all random, lanes"),
    WINDOW,
    Dispatch(name="all by power of two, lanes", online="power of two", bulk="power of two"),
    Dispatch(name="all to the least loaded, lanes", online="least loaded", bulk="least loaded"),
    PULL,
    Dispatch(name="online by power of two, bulk pulled, lanes", online="power of two", pull=True),
)


def run(*, quick: bool) -> list[Row]:
    """Every table; a full run also rewrites the one in docs/."""
    tables: Sequence[tuple[str, Callable[[bool], list[Row]]]] = (
        ("dispatch", dispatch_table),
        ("chunk size", chunk_table),
        ("rerank chunks", rerank_table),
        ("depth", depth_table),
        ("pass size", pass_table),
        ("re-index on CPU", cpu_table),
        ("large requests of short texts", short_texts_table),
    )
    rows: list[Row] = []
    for name, table in tables:
        say(f"simulating: {name}")
        rows += table(quick)
    if not quick:
        say(f"wrote {write_docs(rows)}")
    return rows


def offered(
    dispatch: Dispatch,
    *,
    workers: int,
    utilisation: float,
    seconds: float,
    reranks: bool = False,
    depth: int = 2,
    policy: Policy = GPU_POLICY,
) -> Seen:
    """Poisson traffic at a share of the GPU fleet's peak: 200 queries to one bulk request.

    With `reranks` bulk is replaced: 400 queries to one rerank of 50 and half a bulk request.
    """
    clock, seen = Clock(), Seen(warm_s=seconds * 0.2)
    # The ideal has no hand-over to a device, so nothing needs to be queued there.
    depth = 1 if dispatch.online == "central" else depth
    fleet = Fleet(clock, dispatch, workers=workers, model=GPU, policy=policy, depth=depth)
    callers = Callers(clock, fleet, seen, seed=1)
    queries = QUERIES_PER_BULK * (2 if reranks else 1)
    rerank = 50 * DOCUMENT_TOKENS if reranks else 0
    group = queries * QUERY_TOKENS + rerank + BULK_DOCUMENTS * DOCUMENT_TOKENS
    groups_per_s = utilisation * workers * GPU.tokens_per_s / group
    callers.poisson(Lane.QUERY, 1, QUERY_TOKENS, groups_per_s * queries)
    callers.poisson(Lane.BULK, BULK_DOCUMENTS, DOCUMENT_TOKENS, groups_per_s)
    if reranks:
        callers.poisson(Lane.RERANK, 50, DOCUMENT_TOKENS, groups_per_s)
    clock.run(seconds)
    return seen


def saturated(
    model: DeviceModel, policy: Policy, *, seconds: float, queries: bool, bulk: bool
) -> Seen:
    """Two CPU workers: bulk always waiting, and queries that take a tenth of the tokens."""
    clock, seen = Clock(), Seen(warm_s=seconds * 0.2)
    fleet = Fleet(clock, WINDOW, workers=2, model=model, policy=policy)
    callers = Callers(clock, fleet, seen, seed=2)
    if bulk:
        callers.saturate(Lane.BULK, 96, 128, in_flight=4)
    if queries:
        per_s = 0.10 * 2 * model.tokens_per_s / QUERY_TOKENS
        callers.poisson(Lane.QUERY, 1, QUERY_TOKENS, per_s)
    clock.run(seconds)
    return seen


def dispatch_table(quick: bool) -> list[Row]:
    rows: list[Row] = []
    for workers in (8,) if quick else (2, 4, 8, 16):
        for utilisation in (0.5, 0.7, 0.85, 0.95) if workers == 8 and not quick else (0.85,):
            for dispatch in POLICIES[-2:] if quick else POLICIES:
                seconds = 0.6 if quick else 80 / workers
                seen = offered(dispatch, workers=workers, utilisation=utilisation, seconds=seconds)
                case = f"W={workers}, load {utilisation:.2f}"
                rows.append(_row(f"dispatch: {case}", dispatch.name, seen))
    return rows


def chunk_table(quick: bool) -> list[Row]:
    rows: list[Row] = []
    for sequences in (8,) if quick else (1, 4, 8, 16, 32, 100):
        limits = ChunkLimits(sequences=sequences, tokens=sequences * DOCUMENT_TOKENS)
        dispatch = replace(PULL, limits=limits)
        seen = offered(dispatch, workers=8, utilisation=0.85, seconds=0.6 if quick else 10)
        mine = " (ours)" if sequences == EMBED.sequences else ""
        rows.append(_row("chunk size: W=8, load 0.85", f"{sequences} sequences{mine}", seen))
    return rows


def rerank_table(quick: bool) -> list[Row]:
    rows: list[Row] = []
    for sequences in (2,) if quick else (1, 2, 4, 8, 25):
        limits = ChunkLimits(sequences=sequences, tokens=sequences * DOCUMENT_TOKENS)
        dispatch = replace(PULL, rerank_limits=limits)
        seen = offered(
            dispatch, workers=8, utilisation=0.7, seconds=0.6 if quick else 10, reranks=True
        )
        mine = " (ours)" if sequences == 2 else ""
        rows.append(_row("rerank 50x512: W=8, load 0.70", f"{sequences} sequences{mine}", seen))
    return rows


def depth_table(quick: bool) -> list[Row]:
    """What a batch queued on the device ahead of time costs a query that comes after it."""
    rows: list[Row] = []
    for depth in (2,) if quick else (1, 2, 3):
        seen = offered(PULL, workers=8, utilisation=0.85, seconds=0.6 if quick else 10, depth=depth)
        mine = " (ours)" if depth == 2 else ""
        rows.append(_row("depth: W=8, load 0.85", f"{depth} batches on the device{mine}", seen))
    return rows


def pass_table(quick: bool) -> list[Row]:
    """What a larger bulk pass costs a query on a device where 512 tokens already fill it."""
    rows: list[Row] = []
    for tokens in (512,) if quick else (256, 512, 1024, 2048):
        policy = replace(GPU_POLICY, bulk_pass=tokens, bulk_pass_busy=tokens)
        seen = offered(
            PULL, workers=8, utilisation=0.85, seconds=0.6 if quick else 10, policy=policy
        )
        rows.append(_row("bulk pass: W=8, load 0.85", f"{tokens} tokens", seen))
    return rows


def cpu_table(quick: bool) -> list[Row]:
    """Suite E as a model: what pass size and overtaking do to queries, and cost bulk."""
    seconds = 5.0 if quick else 60.0
    lone = saturated(CPU, CPU_POLICY, seconds=seconds, queries=True, bulk=False)
    rows = [_row("re-index: 2 CPU workers", "queries alone", lone)]
    free = saturated(CPU, CPU_POLICY, seconds=seconds, queries=False, bulk=True)
    rate = free.tokens[Lane.BULK] / seconds / 0.8
    for overtaking in ("none", "pass", "layer"):
        for busy in (256,) if quick else (512, 256, 128):
            model, policy = (
                replace(CPU, overtaking=overtaking),
                replace(CPU_POLICY, bulk_pass_busy=busy),
            )
            seen = saturated(model, policy, seconds=seconds, queries=True, bulk=True)
            kept = seen.tokens[Lane.BULK] / seconds / 0.8 / rate
            name = f"overtaking {overtaking}, busy pass {busy} tokens"
            rows.append(_row("re-index: 2 CPU workers", name, seen, {"bulk kept": kept}))
    return rows


def short_texts_table(quick: bool) -> list[Row]:
    """Queries beside one large request after the other: does its chunk size cost them anything?"""
    ours = bulk_limits(SHORT_TEXTS).sequences
    rows: list[Row] = []
    for sequences in (ours,) if quick else (8, 32, ours, 256):
        dispatch = replace(WINDOW, large_limits=partial(_fixed, sequences))
        clock, seen = Clock(), Seen(warm_s=1.0)
        fleet = Fleet(clock, dispatch, workers=2, model=CPU, policy=CPU_POLICY)
        callers = Callers(clock, fleet, seen, seed=3)
        callers.saturate(Lane.BULK, SHORT_TEXTS, SHORT_TOKENS, in_flight=1)
        callers.poisson(Lane.QUERY, 1, QUERY_TOKENS, 0.10 * 2 * CPU.tokens_per_s / QUERY_TOKENS)
        clock.run(6.0 if quick else 61.0)
        mine = " (ours)" if sequences == ours else ""
        case = f"one request of {SHORT_TEXTS:,} x {SHORT_TOKENS} at a time: 2 CPU workers"
        rows.append(_row(case, f"{sequences} sequences a chunk{mine}", seen))
    return rows


def _fixed(sequences: int, num_seqs: int) -> ChunkLimits:
    del num_seqs
    return ChunkLimits(sequences=sequences)


def _row(case: str, name: str, seen: Seen, extra: dict[str, float] | None = None) -> Row:
    """Percentiles of queries; those of reranks and bulk beside them."""
    found = dict(extra or {})
    for lane in (Lane.RERANK, Lane.BULK):
        if seen.times_ms[lane] and not extra:
            spread = percentiles(seen.times_ms[lane])
            found |= {f"{lane.name.lower()} {p}": spread[p] for p in ("p50", "p99")}
    return Row(
        suite=SUITE,
        case=case,
        engine=name,
        unit="ms",
        samples=len(seen.times_ms[Lane.QUERY]),
        extra=found,
        machine="simulated",
        **percentiles(seen.times_ms[Lane.QUERY]),
    )
