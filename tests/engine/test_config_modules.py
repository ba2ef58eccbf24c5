"""What follows a model's pooling: order, widths and biases of its modules, on both executors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from hedgerow_shared.errors import StartupError
from tests.engine.config_cases import BOTH, SEQUENCES, change, oracle, write
from tests.engine.conftest import OpenEngine, cosines
from tests.engine.tiny import embed, patch_json_dir, write_modules

POOLING = {"pooling_mode": "mean"}


def dense(folder: Path, wide: int, out: int, *, bias: bool = True, **config: Any) -> None:
    """A Dense folder with seeded weights."""
    layer = torch.nn.Linear(wide, out, bias=bias, dtype=torch.float32)
    shape = {"in_features": wide, "out_features": out, "bias": bias}
    patch_json_dir(folder, **shape | config)
    save_file(layer.state_dict(), folder / "model.safetensors")


def linear(folder: Path, rows: np.ndarray) -> np.ndarray:
    tensors = load_file(folder / "model.safetensors")
    bias = tensors.get("linear.bias")
    weight = tensors["linear.weight"]
    return torch.nn.functional.linear(torch.tensor(rows), weight, bias).numpy()


def rename(folder: Path, **renamed: str | None) -> None:
    """The tensors of a Dense folder under sentence-transformers' names, some left out."""
    tensors = load_file(folder / "model.safetensors")
    names = {"weight": "linear.weight", "bias": "linear.bias"} | renamed
    kept = {name: v for k, v in tensors.items() if (name := names[k]) is not None}
    save_file(kept, folder / "model.safetensors")


@pytest.mark.parametrize("executor", BOTH)
def test_a_dense_after_the_normalize_gives_rows_of_any_length(
    tmp_path: Path, open_engine: OpenEngine, executor: str
) -> None:
    folder = write(tmp_path / "m", "Bert")
    write_modules(folder, "Transformer", "Pooling", "Normalize", "Dense", pooling=POOLING)
    dense(folder / "3_Dense", 64, 32)
    rename(folder / "3_Dense")
    pooled = oracle(folder, "Bert", SEQUENCES)
    unit = pooled / np.linalg.norm(pooled, axis=1, keepdims=True)
    expect = np.tanh(linear(folder / "3_Dense", unit.astype(np.float32)))
    got = embed(open_engine(folder, cpu_executor=executor), SEQUENCES)
    np.testing.assert_allclose(got, expect, atol=1e-4)


@pytest.mark.parametrize("executor", BOTH)
def test_a_null_activation_is_the_identity(
    tmp_path: Path, open_engine: OpenEngine, executor: str
) -> None:
    folder = write(tmp_path / "m", "Bert")
    write_modules(folder, "Transformer", "Pooling", "Dense", pooling=POOLING)
    dense(folder / "2_Dense", 64, 32, bias=False)
    change(folder / "2_Dense" / "config.json", activation_function=None)
    rename(folder / "2_Dense")
    expect = linear(folder / "2_Dense", oracle(folder, "Bert", SEQUENCES))
    got = embed(open_engine(folder, cpu_executor=executor), SEQUENCES)
    assert cosines(got, expect).min() > 0.99999


BAD_DENSE: dict[str, tuple[dict[str, Any], dict[str, str | None], str]] = {
    "bias in the config alone": ({}, {"bias": None}, r"tensor linear\.bias is missing"),
    "bias in the file alone": ({"bias": False}, {}, r"unexpected tensor linear\.bias"),
    "another width": ({"in_features": 96}, {}, r"2_Dense/config\.json: in_features must be 64"),
    "no width": ({"in_features": None}, {}, r"2_Dense/config\.json: in_features must be a pos"),
    "bias is text": ({"bias": "yes"}, {}, r"2_Dense/config\.json: bias must be true or false"),
    "on tokens": (
        {"module_input_name": "token_embeddings"},
        {},
        r"2_Dense/config\.json: module_input_name must be sentence_embedding",
    ),
}


@pytest.mark.parametrize("executor", BOTH)
@pytest.mark.parametrize(("config", "names", "message"), BAD_DENSE.values(), ids=BAD_DENSE.keys())
def test_a_dense_that_does_not_fit_is_refused(
    tmp_path: Path,
    open_engine: OpenEngine,
    executor: str,
    config: dict[str, Any],
    names: dict[str, str | None],
    message: str,
) -> None:
    folder = write(tmp_path / "m", "Bert")
    write_modules(folder, "Transformer", "Pooling", "Dense", pooling=POOLING)
    dense(folder / "2_Dense", 64, 32)
    change(folder / "2_Dense" / "config.json", **config)
    rename(folder / "2_Dense", **names)
    with pytest.raises(StartupError, match=message) as refused:
        open_engine(folder, cpu_executor=executor)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("executor", BOTH)
def test_a_dense_on_tokens_before_the_pooling_is_refused(
    tmp_path: Path, open_engine: OpenEngine, executor: str
) -> None:
    folder = write(tmp_path / "m", "Bert")
    write_modules(folder, "Transformer", "Dense", "Pooling", pooling=POOLING)
    dense(folder / "1_Dense", 64, 64, module_input_name="token_embeddings")
    rename(folder / "1_Dense")
    with pytest.raises(StartupError, match=r"modules\.json: dense stands before the pooling"):
        open_engine(folder, cpu_executor=executor)


@pytest.mark.parametrize("executor", BOTH)
def test_logits_of_an_encoder_are_refused_by_the_reason(
    tmp_path: Path, open_engine: OpenEngine, executor: str
) -> None:
    folder = write(tmp_path / "m", "Bert")
    write_modules(folder, "Transformer", "LogitScore")
    patch_json_dir(folder / "1_LogitScore", true_token_id=4, false_token_id=5)
    with pytest.raises(StartupError, match=r"modules\.json: LogitScore .* model_type is 'bert'"):
        open_engine(folder, cpu_executor=executor)
