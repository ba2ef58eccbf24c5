"""Checkpoints of double, half and mixed precision, against transformers' float32."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.engine.conftest import OpenEngine, cosines
from tests.engine.tiny import (
    embed,
    hidden_of,
    save,
    tiny_bert,
    token_batches,
    write_modules,
)


def all_double(name: str) -> torch.dtype:
    return torch.float64


def double_matrices(name: str) -> torch.dtype:
    return torch.float64 if "encoder" in name and name.endswith("weight") else torch.float32


def double_words(name: str) -> torch.dtype:
    return torch.float64 if "word" in name else torch.float32


def mixed_projections(name: str) -> torch.dtype:
    kinds = {"query": torch.float64, "key": torch.float32, "value": torch.bfloat16}
    return next((kinds[part] for part in kinds if part in name), torch.float32)


KINDS = [all_double, double_matrices, double_words, mixed_projections]


@pytest.mark.parametrize("executor", ["auto", "packed"])
@pytest.mark.parametrize("dtype_of", KINDS, ids=lambda kind: kind.__name__)
def test_weights_of_any_float_give_transformers_vectors(
    tmp_path: Path, open_engine: OpenEngine, dtype_of: Callable[[str], torch.dtype], executor: str
) -> None:
    model, folder = tiny_bert(), tmp_path / "m"
    save(folder, model)
    write_modules(folder, "Transformer", "Pooling")
    file = folder / "model.safetensors"
    stored = {name: tensor.to(dtype_of(name)) for name, tensor in load_file(file).items()}
    save_file(stored, file)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(parameter.to(dtype_of(name)).float())
    sequences = token_batches(80)
    got = embed(open_engine(folder, cpu_executor=executor), sequences)
    want = np.stack([hidden_of(model, ids).mean(0) for ids in sequences])
    assert cosines(got, want).min() > 0.99999


def test_double_matrices_stay_with_native_code(tmp_path: Path, open_engine: OpenEngine) -> None:
    folder = save(tmp_path / "m", tiny_bert())
    file = folder / "model.safetensors"
    save_file({n: t.to(double_matrices(n)) for n, t in load_file(file).items()}, file)
    assert open_engine(folder, cpu_executor="native").executor_name.startswith("native")
