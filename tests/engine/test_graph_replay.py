"""Eager, captured and replayed passes of one shape are the same numbers, and are counted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hedgerow_engine.engine import Engine
from hedgerow_shared.ragged import Lane, OutputSpec, RaggedBatch
from tests.engine.conftest import OpenEngine

RNG = np.random.default_rng(3)


def batch_of(*lengths: int) -> RaggedBatch:
    return RaggedBatch.of([RNG.integers(1000, 30000, n) for n in lengths])


def rows_of(engine: Engine, batch: RaggedBatch) -> np.ndarray:
    return np.stack([row[0] for row in engine.step(batch, Lane.QUERY).result().rows])


@pytest.mark.parametrize(
    "lengths", [(1,), (9,), (64,), (65,), (128,), (5, 31, 5), (100, 7, 64, 64)], ids=str
)
def test_eager_captured_and_replayed_agree_exactly_in_float32(
    minilm_folder: Path, open_engine: OpenEngine, lengths: tuple[int, ...]
) -> None:
    engine = open_engine(minilm_folder)
    batch = batch_of(*lengths)
    eager, captured, replayed, again = (rows_of(engine, batch) for _ in range(4))
    stats = engine.stats()
    assert (stats["graph_eager"], stats["graph_captured"], stats["graph_replayed"]) == (1, 1, 2)
    for other in (captured, replayed, again):
        assert np.array_equal(eager, other)


def test_a_replay_answers_other_lengths_of_the_same_bucket(
    minilm_folder: Path, open_engine: OpenEngine
) -> None:
    engine, fresh = open_engine(minilm_folder), open_engine(minilm_folder, graph_cache=0)
    batches = [
        batch_of(70, 30),
        batch_of(20, 80),
        batch_of(50, 50),
        batch_of(99, 6),
        batch_of(97, 1),
    ]
    got = [rows_of(engine, b) for b in batches]
    assert engine.stats()["graph_replayed"] == 3
    for batch, rows in zip(batches, got):
        assert np.array_equal(rows, rows_of(fresh, batch))
    assert fresh.stats()["graph_captured"] == 0


def test_stale_tokens_of_a_longer_pass_never_reach_a_shorter_one(
    minilm_folder: Path, open_engine: OpenEngine
) -> None:
    engine = open_engine(minilm_folder)
    short, full = batch_of(66), batch_of(80)
    first = rows_of(engine, short)
    for batch in (full, short, full):
        last = rows_of(engine, batch)
    assert np.array_equal(rows_of(engine, short), first)
    assert not np.array_equal(last, first)


def test_the_least_recently_used_graph_is_evicted(
    minilm_folder: Path, open_engine: OpenEngine
) -> None:
    engine = open_engine(minilm_folder, graph_cache=2)
    a, b, c = batch_of(4), batch_of(5), batch_of(6)
    for batch in (a, a, b, b, a, c, c):
        rows_of(engine, batch)
    assert engine.stats()["graph_evicted"] == 1
    before = engine.stats()["graph_replayed"]
    rows_of(engine, a)
    assert engine.stats()["graph_replayed"] == before + 1
    rows_of(engine, b)
    assert engine.stats()["graph_captured"] == 4


def test_many_outputs_come_from_one_pass(minilm_folder: Path, open_engine: OpenEngine) -> None:
    engine = open_engine(minilm_folder)
    ids = RNG.integers(1000, 30000, 12)
    spec = OutputSpec(dtypes=("float32", "float16", "int8", "binary"), dimensions=(384, 64))
    batch = RaggedBatch(
        np.concatenate([ids, ids]).astype(np.int32),
        np.array([0, 12, 24], np.int32),
        (spec, OutputSpec(normalize=False)),
    )
    many, raw = engine.step(batch, Lane.QUERY).result().rows
    assert engine.stats()["batches"] == 1
    full, cut = many[0], many[1]
    assert np.linalg.norm(cut) == pytest.approx(1.0, abs=1e-6)
    assert np.allclose(cut, full[:64] / np.linalg.norm(full[:64]), atol=1e-6)
    assert np.allclose(raw[0] / np.linalg.norm(raw[0]), full, atol=1e-6)
    assert np.linalg.norm(raw[0]) != pytest.approx(1.0, abs=1e-3)
    assert np.array_equal(many[2], full.astype(np.float16))
    assert many[4].dtype == np.int8 and np.abs(many[4].astype(int)).max() == 127
    assert np.array_equal(np.unpackbits(many[6]), full > 0)
    assert [a.shape for a in many] == [(384,), (64,), (384,), (64,), (384,), (64,), (48,), (8,)]
