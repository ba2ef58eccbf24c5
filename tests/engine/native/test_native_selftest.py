"""The start-up test: it passes on what is right and names what is wrong; and what it compares
with, the numpy reference, is transformers' model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from native_models import cosine, hidden_states, load, save, sentence_modules
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    ModernBertConfig,
    ModernBertModel,
    Qwen3Config,
    Qwen3Model,
)

from hedgerow_engine.native import model as model_module
from hedgerow_engine.native import program as program_module
from hedgerow_engine.native.build import word_table_dtype
from hedgerow_engine.native.families import UnsupportedError, family_of, modernbert
from hedgerow_engine.native.packing import Packer
from hedgerow_engine.native.reference import reference_rows
from hedgerow_engine.weightfile import RawTensor
from hedgerow_engine.weights import Weights
from hedgerow_shared.modelcard import read_card


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    config = BertConfig(
        hidden_size=64,
        num_attention_heads=2,
        num_hidden_layers=2,
        intermediate_size=128,
        vocab_size=90,
    )
    model = BertModel(config, add_pooling_layer=False)
    return model, save(model, tmp_path_factory.mktemp("bert"))


def test_the_reference_is_transformers(bert) -> None:
    model, folder = bert
    card, weights = read_card(folder), Weights.open(folder)
    family = family_of(card)
    tensors = family.tensors(card, weights, family.geometry(card, word_table_dtype(weights)))
    ids = np.arange(3, 30, dtype=np.int32)
    (row,) = reference_rows(tensors, [ids])
    assert cosine(row, hidden_states(model, ids).mean(0)) >= 0.9999999


@pytest.mark.parametrize("what", ["packing", "scale"])
def test_a_wrong_program_or_packing_is_refused_before_it_serves(
    bert, rung, monkeypatch, what: str
) -> None:
    if what == "packing":
        monkeypatch.setattr(Packer, "matrix", _shifted(Packer.matrix))
    else:
        monkeypatch.setattr(model_module, "LOG2_E", 40.0)
    with pytest.raises(UnsupportedError, match="self-test failed: a sequence of"):
        load(bert[1], rung=rung.name)


def test_a_program_whose_short_passes_are_wrong_is_refused(bert, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("HEDGEROW_CACHE_DIR", str(tmp_path))  # nobody else may get it from there
    monkeypatch.setattr(program_module, "by_columns", lambda layer, phases, scratch: None)
    load(bert[1], threads=1)
    with pytest.raises(UnsupportedError, match="self-test failed: a sequence of 1 tokens"):
        load(bert[1], threads=2)


def test_small_numbers_are_no_reason_to_overlook_wrong_ones(tmp_path, monkeypatch) -> None:
    config = Qwen3Config(
        hidden_size=64,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        num_hidden_layers=1,
        intermediate_size=64,
        vocab_size=90,
    )
    model = Qwen3Model(config)
    save(model, tmp_path)
    with torch.no_grad():
        model.norm.weight *= 0.001
    model.save_pretrained(tmp_path)
    sentence_modules(tmp_path, {"word_embedding_dimension": 64, "pooling_mode": "mean"})
    load(tmp_path)
    monkeypatch.setattr(Packer, "matrix", lambda self, raw, scales, target: target.fill(0))
    with pytest.raises(UnsupportedError, match="self-test failed"):
        load(tmp_path)


def test_logits_that_nearly_cancel_are_no_reason_to_refuse(tmp_path) -> None:
    """One number that is the sum of hundreds: rounding is measured by those."""
    config = BertConfig(
        hidden_size=384,
        num_attention_heads=12,
        num_hidden_layers=1,
        intermediate_size=512,
        vocab_size=200,
        num_labels=1,
    )
    for seed in range(12):
        model = BertForSequenceClassification(config)
        save(model, tmp_path, seed=seed)
        with torch.no_grad():
            model.classifier.weight *= 20
        model.save_pretrained(tmp_path)
        load(tmp_path).close()


def test_weights_that_are_not_numbers_fail_the_test(bert, monkeypatch) -> None:
    monkeypatch.setattr(model_module, "LOG2_E", float("nan"))
    with pytest.raises(UnsupportedError, match="off by nan"):
        load(bert[1])


@pytest.fixture(scope="module")
def three_kinds(tmp_path_factory):
    """A first layer without attention norm, one with, and one that sees its neighbourhood."""
    config = ModernBertConfig(
        hidden_size=64,
        num_attention_heads=2,
        num_hidden_layers=7,
        intermediate_size=64,
        vocab_size=90,
        pad_token_id=0,
    )
    return save(ModernBertModel(config), tmp_path_factory.mktemp("modernbert"))


def test_a_layer_of_each_kind_is_tried(three_kinds) -> None:
    assert load(three_kinds)._built.model.kinds == (0, 1, 3)


def test_a_program_that_ignores_windows_is_refused(three_kinds, monkeypatch, rung) -> None:
    right = modernbert.geometry
    monkeypatch.setattr(
        modernbert, "geometry", lambda card, words: replace(right(card, words), windowed=False)
    )
    with pytest.raises(UnsupportedError, match=r"self-test failed: .* through layer 1 is off by"):
        load(three_kinds, rung=rung.name)


def test_a_window_that_ends_before_it_begins_is_never_run(three_kinds, monkeypatch) -> None:
    right = modernbert.tensors

    def wrong(card, weights, g):
        tensors = right(card, weights, g)

        def layer(i):
            return replace(tensors.layer(i), back=-2, ahead=-2) if i == 1 else tensors.layer(i)

        return replace(tensors, layer=layer)

    monkeypatch.setattr(modernbert, "tensors", wrong)
    with pytest.raises(UnsupportedError, match="layer 1 sees -2 tokens back, -2 ahead"):
        load(three_kinds)


def _shifted(pack):
    def wrong(self, raw, scales, target):
        rolled = np.ascontiguousarray(np.roll(raw.data, 1, axis=0))
        pack(self, RawTensor(raw.name, raw.dtype, rolled, raw.file), scales, target)

    return wrong
