"""Checkpoints in every dress: shards, half precision, old names, prefixes, and warm starts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from hedgerow_shared.errors import StartupError
from tests.engine.conftest import OpenEngine, cosines
from tests.engine.tiny import (
    embed,
    hidden_of,
    patch_json,
    save,
    seeded,
    token_batches,
    transformers,
)


def model() -> Any:
    config = transformers.BertConfig(
        vocab_size=50,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
    )
    return seeded(transformers.BertModel, config)


def renamed(rename: Callable[[str], str]) -> Callable[[Path], None]:
    def dress(folder: Path) -> None:
        file = folder / "model.safetensors"
        save_file({rename(k): v for k, v in load_file(file).items()}, file)

    return dress


def old_norm_names(name: str) -> str:
    if "LayerNorm" not in name:
        return name
    return name.replace(".weight", ".gamma").replace(".bias", ".beta")


def shard(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    model().save_pretrained(folder, max_shard_size="20KB")
    assert len(list(folder.glob("*.safetensors"))) > 1


DRESSES = {
    "plain": lambda folder: None,
    "sharded": shard,
    "bert. prefix": renamed(lambda name: f"bert.{name}"),
    "model. prefix": renamed(lambda name: f"model.{name}"),
    "gamma and beta": renamed(old_norm_names),
}


@pytest.mark.parametrize("dress", DRESSES.values(), ids=DRESSES.keys())
def test_the_same_weights_in_another_dress_give_the_same_vectors(
    tmp_path: Path, open_engine: OpenEngine, dress: Callable[[Path], None]
) -> None:
    folder = save(tmp_path / "m", model())
    dress(folder)
    sequences = token_batches(50)
    want = np.stack([hidden_of(model(), ids).mean(0) for ids in sequences])
    assert np.allclose(embed(open_engine(folder), sequences), want, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_files_are_read_exactly(
    tmp_path: Path, open_engine: OpenEngine, dtype: torch.dtype
) -> None:
    narrow = model().to(dtype)
    folder = save(tmp_path / "m", narrow)
    sequences = token_batches(50)
    want = np.stack([hidden_of(narrow.float(), ids).mean(0) for ids in sequences])
    assert np.allclose(embed(open_engine(folder), sequences), want, atol=1e-4)


def test_warmed_lengths_are_captured_by_their_first_query(
    tmp_path: Path, open_engine: OpenEngine
) -> None:
    engine = open_engine(save(tmp_path / "m", model()), warmup_s=30.0)
    assert engine.stats()["batches"] == 0
    embed(engine, [[5] * 17])
    assert (engine.stats()["graph_eager"], engine.stats()["graph_captured"]) == (0, 1)


def test_a_length_the_positions_do_not_allow_is_refused(
    tmp_path: Path, open_engine: OpenEngine
) -> None:
    with pytest.raises(StartupError, match=r"--max-seq-len 65: .* allows 1 to 64"):
        open_engine(save(tmp_path / "m", model()), max_seq_len=65)


def test_one_file_counts_before_an_index_as_it_does_in_transformers(
    tmp_path: Path, open_engine: OpenEngine
) -> None:
    folder = save(tmp_path / "m", model())
    other = {k: v + 1 for k, v in load_file(folder / "model.safetensors").items()}
    save_file(other, folder / "shard.safetensors")
    weight_map = dict.fromkeys(other, "shard.safetensors")
    patch_json(folder / "model.safetensors.index.json", weight_map=weight_map)
    oracle = transformers.BertModel.from_pretrained(folder)
    sequences = token_batches(50)
    want = np.stack([hidden_of(oracle, ids).mean(0) for ids in sequences])
    assert cosines(embed(open_engine(folder), sequences), want).min() > 0.99999
