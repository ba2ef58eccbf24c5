"""A tensor that the family has is there, and one that the config rules out is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from hedgerow_shared.errors import StartupError
from hedgerow_shared.ragged import OutputSpec
from tests.engine.config_cases import BOTH, MORE, SEQUENCES, SHAPE, change, oracle, write
from tests.engine.conftest import OpenEngine, cosines
from tests.engine.tiny import embed, logits_of, rows, save, seeded, transformers


def forget(folder: Path, *endings: str) -> None:
    """Leave the tensors out whose names end so."""
    tensors = load_file(folder / "model.safetensors")
    kept = {k: v for k, v in tensors.items() if not k.endswith(endings)}
    assert len(kept) < len(tensors)
    save_file(kept, folder / "model.safetensors")


FORGOTTEN: list[tuple[str, dict[str, Any], tuple[str, ...], str]] = [
    ("Bert", {}, ("encoder.layer.0.output.dense.bias",), "0.output.dense.bias"),
    ("Bert", {}, ("embeddings.LayerNorm.bias",), "embeddings.LayerNorm.bias"),
    ("Bert", {}, ("0.attention.self.query.bias",), "0.attention.self.query.bias"),
    (
        "Bert",
        {},
        tuple(f"1.attention.self.{n}.bias" for n in ("query", "key", "value")),
        "1.attention.self.query.bias",
    ),
    ("Roberta", {}, ("2.output.LayerNorm.bias",), "2.output.LayerNorm.bias"),
    ("MPNet", {}, ("0.attention.attn.o.bias",), "0.attention.attn.o.bias"),
    (
        "Llama",
        {"attention_bias": True},
        tuple(f"layers.0.self_attn.{n}_proj.bias" for n in "qkv"),
        "layers.0.self_attn.q_proj.bias",
    ),
    ("Llama", {"mlp_bias": True}, ("layers.0.mlp.up_proj.bias",), "layers.0.mlp.up_proj.bias"),
    ("Qwen2", {}, ("layers.1.self_attn.k_proj.bias",), "layers.1.self_attn.k_proj.bias"),
    ("ModernBert", {}, ("layers.1.attn_norm.weight",), "layers.1.attn_norm.weight"),
    ("ModernBert", {"norm_bias": True}, ("final_norm.bias",), "final_norm.bias"),
    ("ModernBert", {"mlp_bias": True}, ("layers.2.mlp.Wo.bias",), "layers.2.mlp.Wo.bias"),
    ("Gte", {}, ("0.attention.qkv_proj.bias", "0.attention.q_proj.bias"), "0.attention.qkv_proj"),
    ("NomicBert", {}, ("emb_ln.bias",), "emb_ln.bias"),
]


@pytest.mark.parametrize("executor", BOTH)
@pytest.mark.parametrize(
    ("family", "config", "endings", "named"), FORGOTTEN, ids=lambda v: str(v)[:40]
)
def test_a_checkpoint_without_one_of_its_tensors_is_refused_as_incomplete(
    tmp_path: Path,
    open_engine: OpenEngine,
    executor: str,
    family: str,
    config: dict[str, Any],
    endings: tuple[str, ...],
    named: str,
) -> None:
    folder = write(tmp_path / "m", family, **config)
    forget(folder, *endings)
    with pytest.raises(StartupError, match=rf"tensor \S*{named}\S* is missing") as refused:
        open_engine(folder, cpu_executor=executor)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("executor", BOTH)
@pytest.mark.parametrize(
    ("family", "key"),
    [("Llama", "attention_bias"), ("Llama", "mlp_bias"), ("ModernBert", "norm_bias")],
)
def test_biases_that_the_config_rules_out_are_refused(
    tmp_path: Path, open_engine: OpenEngine, executor: str, family: str, key: str
) -> None:
    folder = write(tmp_path / "m", family, **{key: True})
    change(folder / "config.json", **{key: False})
    with pytest.raises(StartupError, match=r"unexpected tensor \S+\.bias"):
        open_engine(folder, cpu_executor=executor)


@pytest.mark.parametrize("executor", BOTH)
@pytest.mark.parametrize(
    ("family", "config"),
    [
        ("Llama", {"mlp_bias": True}),
        ("Llama", {"mlp_bias": True, "attention_bias": True}),
        ("EuroBert", {"mlp_bias": True, "attention_bias": True}),
        ("Qwen3", {"attention_bias": True}),
        ("Gemma3Text", {"attention_bias": True}),
        ("ModernBert", {"mlp_bias": True, "attention_bias": True, "norm_bias": True}),
    ],
    ids=str,
)
def test_biases_of_the_config_are_added(
    tmp_path: Path, open_engine: OpenEngine, executor: str, family: str, config: dict[str, Any]
) -> None:
    folder = write(tmp_path / "m", family, **config)
    got = embed(open_engine(folder, cpu_executor=executor), SEQUENCES)
    assert cosines(got, oracle(folder, family, SEQUENCES)).min() > 0.99999


@pytest.mark.parametrize("executor", BOTH)
@pytest.mark.parametrize(
    ("family", "config"),
    [
        ("NomicBert", {"num_labels": 1}),
        ("NomicBert", {"num_labels": 3}),
        ("Gte", {"num_labels": 1}),
        ("ModernBert", {"num_labels": 1, "classifier_bias": True, "norm_bias": True}),
    ],
    ids=str,
)
def test_a_classifier_gives_transformers_logits_on_both_executors(
    tmp_path: Path, open_engine: OpenEngine, executor: str, family: str, config: dict[str, Any]
) -> None:
    made = getattr(transformers, f"{family}Config")(**SHAPE | MORE.get(family, {}) | config)
    model = seeded(getattr(transformers, f"{family}ForSequenceClassification"), made)
    engine = open_engine(save(tmp_path / "m", model), cpu_executor=executor)
    got = np.stack([row[0] for row in rows(engine, SEQUENCES, OutputSpec(task="classify"))])
    expect = np.stack([logits_of(model, ids) for ids in SEQUENCES])
    np.testing.assert_allclose(got, expect, atol=2e-4 * max(1.0, np.abs(expect).max()))
