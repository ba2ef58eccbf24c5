"""A sequence that cannot be run, or whose numbers are not finite, costs only itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from hedgerow_shared.errors import BadChunkError, BadInputError, RowError
from hedgerow_shared.ragged import Lane, OutputSpec, RaggedBatch
from tests.engine.conftest import OpenEngine
from tests.engine.tiny import (
    embed,
    rows,
    save,
    seeded,
    token_batches,
    transformers,
    write_modules,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = transformers.BertConfig(
        vocab_size=50,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
    )
    model = seeded(transformers.BertModel, config)
    with torch.no_grad():
        model.embeddings.word_embeddings.weight[7] = float("nan")
    return save(tmp_path_factory.mktemp("bert"), model)


def test_a_nan_row_is_an_error_and_its_neighbours_are_untouched(
    folder: Path, open_engine: OpenEngine
) -> None:
    engine = open_engine(folder)
    good = [[8, 9, 10], [11, 12, 13], [20, 21]]
    want = embed(engine, good)
    for _ in range(3):  # eager, captured, replayed
        got = rows(engine, [good[0], [8, 7, 9], good[1], good[2], [7]])
        assert isinstance(got[1], RowError) and isinstance(got[4], RowError)
        for i, j in ((0, 0), (2, 1), (3, 2)):
            assert np.allclose(got[i][0], want[j], atol=1e-6)
    assert engine.stats()["rows_failed"] == 6


def test_sequences_this_model_cannot_run_get_their_own_error(
    folder: Path, open_engine: OpenEngine
) -> None:
    engine = open_engine(folder)
    want = embed(engine, [[8, 9], [10, 11, 12]])
    got = rows(engine, [[8, 9], [50], [10] * 65, [-1, 4], [10, 11, 12]])
    assert [type(r) for r in got] == [tuple, BadInputError, BadInputError, BadInputError, tuple]
    assert np.allclose(np.stack([got[0][0], got[4][0]]), want, atol=1e-6)


def test_a_task_the_model_does_not_have_is_an_error_of_its_sequence(
    folder: Path, open_engine: OpenEngine
) -> None:
    engine = open_engine(folder)
    batch = RaggedBatch(
        np.array([8, 9, 10], np.int32),
        np.array([0, 1, 3], np.int32),
        (OutputSpec(task="score"), OutputSpec(dimensions=(33,))),
    )
    got = engine.step(batch, Lane.RERANK).result().rows
    assert "does not offer 'score'" in str(got[0])
    assert "dimensions must be 1 to 32" in str(got[1])


@pytest.mark.parametrize("wrong", [99, 65, 0, -3])
def test_token_vectors_have_no_more_dimensions_than_the_model(
    tmp_path: Path, open_engine: OpenEngine, wrong: int
) -> None:
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=64, num_hidden_layers=1, num_attention_heads=2
    )
    folder = save(tmp_path / "m", seeded(transformers.BertModel, config))
    write_modules(folder, "Transformer", "MultiVectorMask", "Normalize")
    engine = open_engine(folder)
    good = OutputSpec(task="multivector", dimensions=(8, 64))
    batch = RaggedBatch(
        np.array([8, 9, 10], np.int32),
        np.array([0, 1, 3], np.int32),
        (OutputSpec(task="multivector", dimensions=(8, wrong)), good),
    )
    refused, row = engine.step(batch, Lane.QUERY).result().rows
    assert isinstance(refused, BadInputError) and "dimensions must be 1 to 64" in str(refused)
    assert [part.shape for part in row] == [(2, 8), (2, 64)]


def test_arrays_that_contradict_each_other_are_refused_at_once(
    folder: Path, open_engine: OpenEngine
) -> None:
    batch = RaggedBatch.of([[8, 9]])
    broken = RaggedBatch(batch.input_ids, np.array([0, 3], np.int32), batch.outputs)
    with pytest.raises(BadChunkError):
        open_engine(folder).step(broken, Lane.QUERY)


def test_a_failing_pass_is_the_error_of_its_step_and_the_engine_goes_on(
    folder: Path, open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = open_engine(folder)
    want = embed(engine, [[8, 9]])
    with monkeypatch.context() as patched:
        patched.setattr(engine._executor, "launch", lambda *_: 1 / 0)
        with pytest.raises(Exception, match="the engine failed: ZeroDivisionError"):
            rows(engine, [[8, 9]])
    assert np.allclose(embed(engine, [[8, 9]]), want)
    assert engine.stats()["steps_failed"] == 1


def test_callbacks_fire_once_whether_added_before_or_after_the_end(
    folder: Path, open_engine: OpenEngine
) -> None:
    lazy = open_engine(folder).step(RaggedBatch.of(token_batches(50)), Lane.BULK)
    calls: list[str] = []
    lazy.add_done_callback(lambda: calls.append("early"))
    lazy.result()
    lazy.add_done_callback(lambda: calls.append("late"))
    assert lazy.done() and sorted(calls) == ["early", "late"]
    lazy.release()
