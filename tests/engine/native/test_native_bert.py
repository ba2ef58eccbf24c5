"""BERT-shaped models against transformers, on every rung: pooling, pairs, heads, spans."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from native_models import cosine, hidden_states, load, save, sentence_modules
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    XLMRobertaConfig,
    XLMRobertaForSequenceClassification,
    XLMRobertaModel,
)

from hedgerow_shared.ragged import RaggedBatch

SHAPE = {
    "hidden_size": 64,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "intermediate_size": 160,
    "vocab_size": 120,
}
MODES = ["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    config = BertConfig(**SHAPE, max_position_embeddings=700, type_vocab_size=2)
    model = BertModel(config, add_pooling_layer=False)
    return model, save(model, tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="module")
def xlmr(tmp_path_factory):
    config = XLMRobertaConfig(
        **SHAPE, max_position_embeddings=90, type_vocab_size=1, pad_token_id=1
    )
    model = XLMRobertaModel(config, add_pooling_layer=False)
    return model, save(model, tmp_path_factory.mktemp("xlmr"))


def _gate(rung) -> float:
    return 0.999 if rung.dtype == "bfloat16" else 0.99999


def _sequences(*lengths: int, seed: int = 0) -> list[np.ndarray]:
    g = np.random.default_rng(seed)
    return [g.integers(2, 120, n).astype(np.int32) for n in lengths]


def _pool(hidden: np.ndarray, mode: str) -> np.ndarray:
    places = np.arange(1, len(hidden) + 1)
    return {
        "cls": lambda: hidden[0],
        "max": lambda: hidden.max(0),
        "mean": lambda: hidden.mean(0),
        "mean_sqrt_len_tokens": lambda: hidden.sum(0) / np.sqrt(len(hidden)),
        "weightedmean": lambda: places @ hidden / places.sum(),
        "lasttoken": lambda: hidden[-1],
    }[mode]()


def _with_pooling(folder: Path, tmp_path: Path, pooling: dict, **options) -> Path:
    for file in folder.iterdir():
        if file.is_file():
            (tmp_path / file.name).symlink_to(file)
    sentence_modules(tmp_path, pooling, **options)
    return tmp_path


def test_every_pooling_equals_transformers_and_they_stand_beside_each_other(
    bert, rung, tmp_path
) -> None:
    model, folder = bert
    folder = _with_pooling(folder, tmp_path, {"pooling_mode": MODES}, normalize=False)
    sequences = _sequences(1, 9, 30)
    got = load(folder, rung=rung.name).run(RaggedBatch.of(sequences))
    for row, ids in zip(got, sequences, strict=True):
        for part, mode in zip(row.reshape(len(MODES), -1), MODES, strict=True):
            want = _pool(hidden_states(model, ids), mode)
            assert cosine(part, want) >= _gate(rung), mode
            assert np.linalg.norm(part) == pytest.approx(np.linalg.norm(want), rel=2e-2), mode


def test_a_final_normalize_gives_unit_rows_beside_the_pooled_ones(bert, rung, tmp_path) -> None:
    model, folder = bert
    folder = _with_pooling(folder, tmp_path, {"pooling_mode": "cls"})
    (ids,) = _sequences(12)
    answer = load(folder, rung=rung.name).launch(RaggedBatch.of([ids]), ("embed",)).wait()
    assert cosine(answer.pooled[0], hidden_states(model, ids)[0]) >= _gate(rung)
    np.testing.assert_allclose(
        answer.unit, answer.pooled / np.linalg.norm(answer.pooled, axis=1)[:, None], rtol=1e-5
    )


def test_the_second_text_of_a_pair_has_the_other_token_type(bert, rung) -> None:
    model, folder = bert
    sequences = _sequences(20, 11)
    batch = RaggedBatch.of(sequences)
    batch = RaggedBatch(batch.input_ids, batch.cu_seqlens, batch.outputs, np.int32([8, 0]))
    got = load(folder, rung=rung.name).run(batch)
    types = torch.tensor([[0] * 8 + [1] * 12])
    typed = hidden_states(model, sequences[0], token_type_ids=types).mean(0)
    assert cosine(got[0], typed) >= _gate(rung)
    assert cosine(got[1], hidden_states(model, sequences[1]).mean(0)) >= _gate(rung)
    assert cosine(hidden_states(model, sequences[0]).mean(0), typed) < 0.999


@pytest.mark.parametrize("length", [513, 700])
def test_a_sequence_longer_than_a_key_block_equals_transformers(bert, rung, length: int) -> None:
    model, folder = bert
    (ids,) = _sequences(length)
    row = load(folder, rung=rung.name).run(RaggedBatch.of([ids]))[0]
    assert cosine(row, hidden_states(model, ids).mean(0)) >= _gate(rung)


def test_spans_give_a_row_each_and_others_stay_whole(bert, rung) -> None:
    model, folder = bert
    sequences = _sequences(5, 30, 4)
    batch = RaggedBatch.of(sequences)
    spans = np.int32([[1, 0, 10], [1, 7, 30], [2, 1, 2]])
    batch = RaggedBatch(batch.input_ids, batch.cu_seqlens, batch.outputs, spans=spans)
    executor = load(folder, rung=rung.name)
    got = executor.run(batch)
    hidden = [hidden_states(model, ids) for ids in sequences]
    want = [hidden[0], hidden[1][:10], hidden[1][7:], hidden[2][1:2]]
    assert got.shape == (4, 64)
    for row, part in zip(got, want, strict=True):
        assert cosine(row, part.mean(0)) >= _gate(rung)


def test_a_prompt_is_left_out_of_the_mean_where_the_model_says_so(bert, rung, tmp_path) -> None:
    model, folder = bert
    pooling = {"pooling_mode": "mean", "include_prompt": False}
    folder = _with_pooling(folder, tmp_path, pooling)
    sequences = _sequences(20, 9)
    batch = RaggedBatch.of(sequences)
    batch = RaggedBatch(
        batch.input_ids, batch.cu_seqlens, batch.outputs, prompt_len=np.int32([6, 0])
    )
    got = load(folder, rung=rung.name).run(batch)
    assert cosine(got[0], hidden_states(model, sequences[0])[6:].mean(0)) >= _gate(rung)
    assert cosine(got[1], hidden_states(model, sequences[1]).mean(0)) >= _gate(rung)


def test_xlmr_positions_begin_after_the_padding_id(xlmr, rung) -> None:
    model, folder = xlmr
    sequences = _sequences(1, 17, 88)
    got = load(folder, rung=rung.name).run(RaggedBatch.of(sequences))
    for row, ids in zip(got, sequences, strict=True):
        assert cosine(row, hidden_states(model, ids).mean(0)) >= _gate(rung)


@pytest.mark.parametrize("family", ["bert", "xlmr"])
@pytest.mark.parametrize("labels", [1, 3])
def test_classifier_logits_equal_transformers(rung, tmp_path, family: str, labels: int) -> None:
    if family == "bert":
        config = BertConfig(**SHAPE, num_labels=labels)
        model = BertForSequenceClassification(config)
    else:
        config = XLMRobertaConfig(**SHAPE, num_labels=labels, pad_token_id=1)
        model = XLMRobertaForSequenceClassification(config)
    folder = save(model, tmp_path, seed=labels)
    sequences = _sequences(3, 21)
    executor = load(folder, rung=rung.name)
    got = executor.launch(RaggedBatch.of(sequences), ("score",)).wait().logits
    assert executor.tasks == {"score", "classify"}
    for row, ids in zip(got, sequences, strict=True):
        with torch.inference_mode():
            want = model(torch.tensor(ids[None], dtype=torch.int64)).logits[0].numpy()
        assert row.shape == (labels,)
        np.testing.assert_allclose(row, want, atol=3e-2 if rung.dtype == "bfloat16" else 1e-4)


def test_arrays_of_any_layout_give_the_same_row(bert) -> None:
    executor = load(bert[1])
    plain = RaggedBatch.of(_sequences(5, 9))
    strided = RaggedBatch(
        np.repeat(plain.input_ids, 2)[::2], plain.cu_seqlens.astype(np.int64), plain.outputs
    )
    assert not strided.input_ids.flags.c_contiguous
    assert np.array_equal(executor.run(strided), executor.run(plain))


def test_ids_and_lengths_the_tables_do_not_have_are_refused(bert) -> None:
    executor = load(bert[1])
    for ids in ([120], [-1], [1] * 701):
        with pytest.raises(ValueError, match=r"outside|longer"):
            executor.run(RaggedBatch.of([ids]))


def test_not_a_number_in_one_row_stays_in_that_row(bert, tmp_path) -> None:
    from safetensors.torch import load_file, save_file

    _, folder = bert
    for file in folder.iterdir():
        (tmp_path / file.name).symlink_to(file)
    state = load_file(folder / "model.safetensors")
    state["embeddings.word_embeddings.weight"][7] = float("nan")
    (tmp_path / "model.safetensors").unlink()
    save_file(state, tmp_path / "model.safetensors")
    sequences = [np.full(9, 3), np.array([3, 7, 3]), np.full(9, 5)]
    got = load(tmp_path).run(RaggedBatch.of(sequences))
    clean = load(folder).run(RaggedBatch.of(sequences))
    assert np.isnan(got[1]).all()
    assert np.array_equal(got[[0, 2]], clean[[0, 2]])
