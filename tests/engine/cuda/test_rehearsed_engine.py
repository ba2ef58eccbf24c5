"""The whole engine over a rehearsed card: threads, poison, priorities, outputs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hedgerow_engine.device.cuda.rehearsal import Rehearsal
from hedgerow_shared.errors import RowError
from hedgerow_shared.ragged import Lane, OutputSpec, RaggedBatch
from tests.engine.conftest import OpenEngine, cosines
from tests.engine.cuda.conftest import POISON, OpenRehearsed, batch_of
from tests.engine.test_families import FAMILIES, LONGEST, POOLING, VOCAB, Family
from tests.engine.tiny import embed, rows, save, token_batches, write_modules

RNG = np.random.default_rng(11)


def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.name)
def test_every_family_gives_the_vectors_of_the_cpu(
    family: Family, tmp_path: Path, open_engine: OpenEngine, open_rehearsed: OpenRehearsed
) -> None:
    """The card's layers, pooling and graphs (in plain torch) against the packed executor."""
    folder = save(tmp_path / "m", family.build(), **family.patch)
    write_modules(
        folder,
        "Transformer",
        "Pooling",
        pooling={"embedding_dimension": 64, "pooling_mode": POOLING[family.pool]},
    )
    sequences = [*token_batches(VOCAB), *token_batches(VOCAB, (min(150, LONGEST),), seed=4)]
    want = embed(open_engine(folder), sequences)
    engine = open_rehearsed(Rehearsal(at_once=True), folder)
    for _ in range(3):  # eager, captured, replayed
        got = embed(engine, sequences)
        assert cosines(got, want).min() >= 0.99999
        assert np.abs(got - want).max() <= 1e-3 * np.abs(want).max()
    assert engine.stats()["graph_replayed"] == 1


def test_every_output_matches_the_cpu(
    tiny_folder: Path, open_engine: OpenEngine, open_rehearsed: OpenRehearsed
) -> None:
    spec = OutputSpec(dtypes=("float32", "float16", "int8", "binary"), dimensions=(32, 16))
    sequences = [list(s) for s in (range(8, 20), range(30, 33), [50], range(8, 70))]
    want = rows(open_engine(tiny_folder), sequences, spec)
    got = rows(open_rehearsed(Rehearsal(at_once=True)), sequences, spec)
    for ours, theirs in zip(got, want, strict=True):
        assert [a.dtype for a in ours] == [a.dtype for a in theirs]
        assert [a.shape for a in ours] == [a.shape for a in theirs]
        for a, b in zip(ours, theirs, strict=True):
            away = np.abs(a.astype(np.float64) - b.astype(np.float64))
            assert away.max() <= (1e-3 if a.dtype.kind == "f" else 1), (a.dtype, away.max())
        assert np.array_equal(ours[6], theirs[6]) and np.array_equal(ours[7], theirs[7])


def test_poison_costs_only_its_owner(open_rehearsed: OpenRehearsed) -> None:
    engine = open_rehearsed(Rehearsal(at_once=True))
    clean = [[10, 11, 12], [20, 21], [30, 31, 32, 33]]
    right = embed(engine, clean)
    got = rows(engine, [clean[0], [9, POISON, 9], clean[1], clean[2]])
    assert isinstance(got[1], RowError)
    good = np.stack([got[i][0] for i in (0, 2, 3)])  # type: ignore[index]
    assert cosines(good, right).min() > 0.999999
    stats = engine.stats()
    assert stats["batches_isolated"] == 1 and stats["rows_failed"] == 1


def test_poison_that_reached_neighbours_is_undone_by_lone_runs(
    open_rehearsed: OpenRehearsed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a card a NaN travels through whole tiles: here every row of such a batch is poisoned."""
    import torch

    from hedgerow_engine.attention.sdpa import SdpaAttention

    honest = SdpaAttention.run

    def leaking(self: SdpaAttention, q, k, v, bias=None):  # type: ignore[no-untyped-def]
        out = honest(self, q, k, v, bias)
        return out if bool(torch.isfinite(out).all()) else torch.full_like(out, float("nan"))

    monkeypatch.setattr(SdpaAttention, "run", leaking)
    engine = open_rehearsed(Rehearsal(at_once=True))
    clean = [[10, 11, 12], [20, 21]]
    right = embed(engine, clean)
    got = rows(engine, [clean[0], [POISON], clean[1]])
    assert isinstance(got[1], RowError)
    assert cosines(np.stack([got[0][0], got[2][0]]), right).min() > 0.999999  # type: ignore[index]


@pytest.mark.parametrize("lane", [Lane.QUERY, Lane.BULK])
def test_lone_runs_stay_in_the_lane_of_their_batch(
    open_rehearsed: OpenRehearsed, monkeypatch: pytest.MonkeyPatch, lane: Lane
) -> None:
    """Neighbours of a poisoned query must not wait behind all bulk that is queued."""
    from hedgerow_engine.device.cuda.executor import CudaExecutor

    ran: list[str] = []
    for name in ("launch", "launch_bulk"):
        honest = getattr(CudaExecutor, name)

        def spy(self, *args, honest=honest, name=name):  # type: ignore[no-untyped-def]
            ran.append(name)
            return honest(self, *args)

        monkeypatch.setattr(CudaExecutor, name, spy)
    engine = open_rehearsed(Rehearsal(at_once=True))
    ran.clear()
    sequences = [[10, 11], [POISON, 9], [12]]
    output = engine.step(RaggedBatch.of(sequences, OutputSpec()), lane).result()
    assert [isinstance(row, RowError) for row in output.rows] == [False, True, False]
    assert ran == ["launch_bulk" if lane is Lane.BULK else "launch"] * 4


def test_a_lone_poisoned_sequence_is_not_run_again(open_rehearsed: OpenRehearsed) -> None:
    engine = open_rehearsed(Rehearsal(at_once=True))
    (row,) = rows(engine, [[POISON, 9]])
    assert isinstance(row, RowError) and engine.stats()["batches_isolated"] == 0
    assert engine.stats()["batches"] == 1


def test_step_returns_while_the_card_is_still_busy(open_rehearsed: OpenRehearsed) -> None:
    """Results come from a waiter thread; the engine thread is free for the next batch."""
    engine = open_rehearsed(Rehearsal())
    embed(engine, [[10, 11]])
    lazies = [engine.step(batch_of(RNG, 5, 9), Lane.QUERY) for _ in range(3)]
    called = threading.Event()
    lazies[-1].add_done_callback(called.set)
    assert called.wait(10)
    assert all(len(lazy.result().rows) == 2 for lazy in lazies)


def test_a_query_overtakes_a_bulk_pass_on_a_stream_of_its_own(
    open_rehearsed: OpenRehearsed,
) -> None:
    card = Rehearsal()
    engine = open_rehearsed(card)
    engine.step(batch_of(RNG, 40), Lane.BULK).result()
    embed(engine, [[10, 11]])
    urgent, slow = card.streams
    blocker = threading.Event()
    slow.push(blocker.wait)  # a bulk pass that takes as long as we like
    bulk = engine.step(batch_of(RNG, 40), Lane.BULK)
    query = engine.step(batch_of(RNG, 5), Lane.QUERY)
    assert len(query.result().rows) == 1
    assert not bulk.done()
    blocker.set()
    assert len(bulk.result().rows) == 1
    assert urgent.queued == 0


def test_both_priorities_share_no_buffer_and_give_the_same_vectors(
    open_rehearsed: OpenRehearsed,
) -> None:
    card = Rehearsal()
    engine = open_rehearsed(card)
    batch = batch_of(RNG, 5, 30, 8)
    answers = [
        np.stack([row[0] for row in engine.step(batch, lane).result().rows])  # type: ignore[index]
        for lane in (Lane.QUERY, Lane.BULK, Lane.RERANK, Lane.BULK, Lane.BULK)
    ]
    assert all(np.array_equal(answers[0], a) for a in answers[1:])
    assert len(card.streams) == 2
    assert engine.stats()["graph_captured"] == 2  # one graph in each pool


def test_the_flag_puts_everything_on_one_stream(open_rehearsed: OpenRehearsed) -> None:
    card = Rehearsal()
    engine = open_rehearsed(card, priorities=False)
    for lane in (Lane.QUERY, Lane.BULK):
        engine.step(batch_of(RNG, 5), lane).result()
    assert len(card.streams) == 1


def test_idle_time_records_hot_shapes_and_traffic_goes_first(
    open_rehearsed: OpenRehearsed, tmp_path: Path
) -> None:
    first = open_rehearsed(Rehearsal(at_once=True), graph_hits=str(tmp_path))
    for _ in range(3):
        embed(first, [[10] * 20])
    first.close()
    second = open_rehearsed(Rehearsal(at_once=True), graph_hits=str(tmp_path))
    until(lambda: second.stats()["graph_warmed"] == 1)
    embed(second, [[10] * 20])
    assert second.stats()["graph_replayed"] == 1


def test_spans_and_prompts_are_pooled_as_on_the_cpu(
    tiny_folder: Path, open_engine: OpenEngine, open_rehearsed: OpenRehearsed
) -> None:
    base = RaggedBatch.of([list(range(8, 28)), list(range(40, 45))])
    batch = RaggedBatch(
        base.input_ids,
        base.cu_seqlens,
        base.outputs,
        spans=np.array([[0, 0, 4], [0, 4, 9], [0, 9, 20]], np.int32),
    )
    want = open_engine(tiny_folder).step(batch, Lane.QUERY).result().rows
    got = open_rehearsed(Rehearsal(at_once=True)).step(batch, Lane.QUERY).result().rows
    for ours, theirs in zip(got, want, strict=True):
        assert ours[0].shape == theirs[0].shape  # type: ignore[index]
        assert np.abs(ours[0] - theirs[0]).max() < 1e-4  # type: ignore[index]
