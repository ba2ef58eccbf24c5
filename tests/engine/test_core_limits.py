"""Models whose limit is a handful of tokens, on both executors, against transformers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.engine.conftest import OpenEngine, cosines
from tests.engine.tiny import (
    embed,
    hidden_of,
    save,
    seeded,
    token_batches,
    transformers,
    write_modules,
)

SHAPE = {
    "vocab_size": 80,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 128,
}


def bert(positions: int) -> Any:
    config = transformers.BertConfig(**SHAPE, max_position_embeddings=positions)
    return seeded(transformers.BertModel, config)


def mpnet(positions: int) -> Any:
    config = transformers.MPNetConfig(**SHAPE, max_position_embeddings=positions + 2)
    return seeded(transformers.MPNetModel, config)


def llama(positions: int) -> Any:
    config = transformers.LlamaConfig(
        **SHAPE, num_key_value_heads=1, max_position_embeddings=positions
    )
    return seeded(transformers.LlamaModel, config)


def modernbert(positions: int) -> Any:
    config = transformers.ModernBertConfig(
        **SHAPE, max_position_embeddings=positions, local_attention=4, pad_token_id=0
    )
    return seeded(transformers.ModernBertModel, config)


MODELS = [bert, mpnet, llama, modernbert]


def folder_of(folder: Path, model: Any, **config: Any) -> Path:
    save(folder, model, **config)
    write_modules(folder, "Transformer", "Pooling")
    return folder


def expected(model: Any, sequences: list[list[int]]) -> np.ndarray:
    return np.stack([hidden_of(model, ids).mean(0) for ids in sequences])


@pytest.mark.parametrize("executor", ["native", "packed"])
@pytest.mark.parametrize("limit", [1, 5, 20])
@pytest.mark.parametrize("make", MODELS)
def test_a_model_of_few_positions_loads_and_serves_batches(
    tmp_path: Path,
    open_engine: OpenEngine,
    make: Callable[[int], Any],
    limit: int,
    executor: str,
) -> None:
    model = make(limit)
    engine = open_engine(folder_of(tmp_path / "m", model), cpu_executor=executor, warmup_s=0.2)
    # More than 64 tokens: the packed executor fills its shape up past the last of them.
    sequences = token_batches(80, (limit,) * (66 // limit + 1))
    assert cosines(embed(engine, sequences), expected(model, sequences)).min() > 0.99999


@pytest.mark.parametrize("make", MODELS)
def test_a_lower_limit_asked_for_keeps_the_native_executor(
    tmp_path: Path, open_engine: OpenEngine, make: Callable[[int], Any]
) -> None:
    model = make(130)
    folder = folder_of(tmp_path / "m", model)
    engine = open_engine(folder, cpu_executor="native", max_seq_len=5, warmup_s=0.2)
    sequences = token_batches(80, (5, 1, 4, 5))
    assert cosines(embed(engine, sequences), expected(model, sequences)).min() > 0.99999


@pytest.mark.parametrize("executor", ["native", "packed"])
@pytest.mark.parametrize("pad", [-1, 80, 5000])
def test_a_padding_token_outside_the_vocabulary_changes_nothing(
    tmp_path: Path, open_engine: OpenEngine, executor: str, pad: int
) -> None:
    model = bert(130)
    folder = folder_of(tmp_path / "m", model, pad_token_id=pad)
    engine = open_engine(folder, cpu_executor=executor, warmup_s=0.2)
    sequences = token_batches(80, (33, 40, 5))
    assert cosines(embed(engine, sequences), expected(model, sequences)).min() > 0.99999
