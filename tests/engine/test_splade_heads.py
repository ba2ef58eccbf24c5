"""The masked-language-model head that SPLADE pools: whose bias, whose matrix, which activation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from hedgerow_engine.engine import Engine
from hedgerow_shared.errors import StartupError
from hedgerow_shared.ragged import OutputSpec
from tests.engine.config_cases import SEQUENCES
from tests.engine.conftest import OpenEngine
from tests.engine.st_folders import tiny
from tests.engine.tiny import logits_of, rows, transformers, write_modules

SIZES = {"DistilBert": {"dim": 64, "n_layers": 2, "n_heads": 2, "hidden_dim": 96}}
STEMS = {"Bert": "cls.predictions", "DebertaV2": "cls.predictions"}
TWO_BIASES = ("Bert", "Roberta", "XLMRoberta", "Camembert", "MPNet", "DebertaV2")


def splade(folder: Path, family: str, **config: Any) -> Path:
    tiny(folder, family, "ForMaskedLM", **SIZES.get(family, {}) | config)
    write_modules(folder, "Transformer", "SpladePooling")
    return folder


def edit(folder: Path, *drop: str, **tensors: Any) -> None:
    file = folder / "model.safetensors"
    kept = {k: v for k, v in load_file(file).items() if k not in drop}
    save_file(kept | tensors, file, metadata={"format": "pt"})


def wanted(folder: Path, family: str, ids: list[int]) -> np.ndarray:
    model = getattr(transformers, f"{family}ForMaskedLM").from_pretrained(folder)
    return np.log1p(np.maximum(logits_of(model, ids), 0)).max(0)


def assert_as_transformers(engine: Engine, folder: Path, family: str) -> None:
    got = rows(engine, SEQUENCES, OutputSpec(task="sparse"))
    for (found, weights), ids in zip(got, SEQUENCES):
        dense = np.zeros(80, np.float32)
        dense[found] = weights
        assert np.allclose(dense, wanted(folder, family, ids), atol=1e-4)


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "own matrix"])
@pytest.mark.parametrize("family", [*TWO_BIASES, "DistilBert", "Gte"])
def test_a_head_as_transformers_saves_it(
    tmp_path: Path, open_engine: OpenEngine, family: str, tied: bool
) -> None:
    folder = splade(tmp_path / "m", family, tie_word_embeddings=tied)
    assert_as_transformers(open_engine(folder), folder, family)


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "own matrix"])
@pytest.mark.parametrize("family", TWO_BIASES)
def test_of_two_biases_the_decoders_own_counts(
    tmp_path: Path, open_engine: OpenEngine, family: str, tied: bool
) -> None:
    folder = splade(tmp_path / "m", family, tie_word_embeddings=tied)
    stem = STEMS.get(family, "lm_head")
    torch.manual_seed(7)
    biases = {f"{stem}.bias": torch.randn(80), f"{stem}.decoder.bias": torch.randn(80)}
    edit(folder, **biases)
    assert_as_transformers(open_engine(folder), folder, family)
    edit(folder, f"{stem}.bias")
    assert_as_transformers(open_engine(folder), folder, family)


@pytest.mark.parametrize("family", [*TWO_BIASES, "DistilBert"])
def test_a_head_without_a_bias_is_refused(
    tmp_path: Path, open_engine: OpenEngine, family: str
) -> None:
    folder = splade(tmp_path / "m", family)
    stem = STEMS.get(family, "lm_head")
    edit(folder, f"{stem}.bias", f"{stem}.decoder.bias", "vocab_projector.bias")
    with pytest.raises(StartupError, match=r"bias is missing"):
        open_engine(folder)


@pytest.mark.parametrize("family", ["Bert", "XLMRoberta", "DistilBert"])
def test_a_head_that_is_not_tied_needs_its_own_matrix(
    tmp_path: Path, open_engine: OpenEngine, family: str
) -> None:
    folder = splade(tmp_path / "m", family, tie_word_embeddings=False)
    stem = STEMS.get(family, "lm_head")
    edit(folder, f"{stem}.decoder.weight", "vocab_projector.weight")
    with pytest.raises(StartupError, match=r"weight is missing"):
        open_engine(folder)


@pytest.mark.parametrize("family", ["Roberta", "XLMRoberta", "Camembert", "MPNet", "Gte", "Bert"])
def test_a_head_of_robertas_kind_has_a_gelu_whatever_the_layers_have(
    tmp_path: Path, open_engine: OpenEngine, family: str
) -> None:
    folder = splade(tmp_path / "m", family, hidden_act="relu")
    assert_as_transformers(open_engine(folder), folder, family)


@pytest.mark.parametrize("name", ["softplus", None])
def test_an_activation_of_splade_that_is_not_built_is_refused(
    tmp_path: Path, open_engine: OpenEngine, name: str | None
) -> None:
    folder = splade(tmp_path / "m", "Bert")
    (folder / "1_SpladePooling").mkdir()
    config = json.dumps({"activation_function": name})
    (folder / "1_SpladePooling" / "config.json").write_text(config)
    with pytest.raises(StartupError, match=r"activation_function is .* relu or log1p_relu"):
        open_engine(folder)
