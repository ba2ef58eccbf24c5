"""Model folders with random weights in the shapes of real models: no download, no transformers."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What decides a model's time. kv_heads and inner as in its config; gated: three matrices."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int
    vocab: int
    max_tokens: int
    gated: bool

    @property
    def weights(self) -> int:
        """Numbers in the matrices of all layers."""
        d, attention = self.hidden, self.heads * self.head_dim
        kv = self.kv_heads * self.head_dim
        matrices = 3 if self.gated else 2
        return self.layers * (d * (attention + 2 * kv) + attention * d + matrices * d * self.inner)

    def flops(self, seqlens: list[int]) -> float:
        """Multiply-adds count twice; attention in full, as the published formula has it."""
        squares = sum(n * n for n in seqlens)
        dense = 2.0 * self.weights * sum(seqlens)
        return dense + self.layers * 4.0 * self.heads * self.head_dim * squares

    def floor_s(self, seqlens: list[int], flops_per_s: float, bytes_per_s: float) -> float:
        """No bf16 pass is faster: all products, or all weights read once."""
        return max(self.flops(seqlens) / flops_per_s, 2.0 * self.weights / bytes_per_s)


MINILM = Shape(
    name="MiniLM-L6 shape",
    layers=6,
    hidden=384,
    heads=12,
    kv_heads=12,
    head_dim=32,
    inner=1536,
    vocab=30522,
    max_tokens=4096,
    gated=False,
)
QWEN3 = Shape(
    name="Qwen3-0.6B shape",
    layers=28,
    hidden=1024,
    heads=16,
    kv_heads=8,
    head_dim=128,
    inner=3072,
    vocab=151669,
    max_tokens=8192,
    gated=True,
)
# The same two families, small enough to rehearse on a CPU.
TINY_BERT = Shape(
    name="tiny BERT",
    layers=1,
    hidden=32,
    heads=2,
    kv_heads=2,
    head_dim=16,
    inner=32,
    vocab=64,
    max_tokens=64,
    gated=False,
)
TINY_QWEN3 = Shape(
    name="tiny Qwen3",
    layers=1,
    hidden=32,
    heads=2,
    kv_heads=1,
    head_dim=16,
    inner=32,
    vocab=64,
    max_tokens=64,
    gated=True,
)


def write_model(shape: Shape, folder: Path) -> Path:
    """Write config, modules and bf16 weights; a folder that is complete is taken as it is."""
    if (folder / "model.safetensors").is_file():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    config = _qwen3_config(shape) if shape.gated else _bert_config(shape)
    (folder / "config.json").write_text(json.dumps(config))
    pooling = {"word_embedding_dimension": shape.hidden}
    pooling |= (
        {"pooling_mode_lasttoken": True} if shape.gated else {"pooling_mode_mean_tokens": True}
    )
    kinds = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    entries = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(entries))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    tensors = _qwen3_tensors(shape) if shape.gated else _bert_tensors(shape)
    fresh = folder / "model.safetensors.part"
    save_file(tensors, fresh)
    fresh.replace(folder / "model.safetensors")
    return folder


class _Random:
    """Weights of about the size training leaves: products keep the size of their inputs."""

    def __init__(self) -> None:
        self._generator = torch.Generator().manual_seed(0)
        self.made: dict[str, torch.Tensor] = {}

    def matrix(self, name: str, out: int, size: int, scale: float | None = None) -> None:
        values = torch.empty(out, size, dtype=torch.float32)
        values.normal_(0, scale or 1 / math.sqrt(size), generator=self._generator)
        self.made[name] = values.bfloat16()

    def vector(self, name: str, size: int, around: float) -> None:
        noise = torch.randn(size, generator=self._generator) * 0.05
        self.made[name] = (noise + around).bfloat16()


def _bert_config(s: Shape) -> dict[str, Any]:
    return {
        "model_type": "bert",
        "architectures": ["BertModel"],
        "vocab_size": s.vocab,
        "hidden_size": s.hidden,
        "num_hidden_layers": s.layers,
        "num_attention_heads": s.heads,
        "intermediate_size": s.inner,
        "hidden_act": "gelu",
        "max_position_embeddings": s.max_tokens,
        "type_vocab_size": 2,
        "layer_norm_eps": 1e-12,
        "pad_token_id": 0,
    }


def _bert_tensors(s: Shape) -> dict[str, torch.Tensor]:
    r = _Random()

    def norm(name: str) -> None:
        r.vector(f"{name}.weight", s.hidden, 1.0)
        r.vector(f"{name}.bias", s.hidden, 0.0)

    def linear(name: str, out: int, size: int) -> None:
        r.matrix(f"{name}.weight", out, size)
        r.vector(f"{name}.bias", out, 0.0)

    for table, rows in (("word", s.vocab), ("position", s.max_tokens), ("token_type", 2)):
        r.matrix(f"embeddings.{table}_embeddings.weight", rows, s.hidden, 0.05)
    norm("embeddings.LayerNorm")
    for i in range(s.layers):
        at = f"encoder.layer.{i}."
        for part in ("query", "key", "value"):
            linear(f"{at}attention.self.{part}", s.hidden, s.hidden)
        linear(f"{at}attention.output.dense", s.hidden, s.hidden)
        norm(f"{at}attention.output.LayerNorm")
        linear(f"{at}intermediate.dense", s.inner, s.hidden)
        linear(f"{at}output.dense", s.hidden, s.inner)
        norm(f"{at}output.LayerNorm")
    return r.made


def _qwen3_config(s: Shape) -> dict[str, Any]:
    return {
        "model_type": "qwen3",
        "architectures": ["Qwen3Model"],
        "vocab_size": s.vocab,
        "hidden_size": s.hidden,
        "num_hidden_layers": s.layers,
        "num_attention_heads": s.heads,
        "num_key_value_heads": s.kv_heads,
        "head_dim": s.head_dim,
        "intermediate_size": s.inner,
        "hidden_act": "silu",
        "max_position_embeddings": s.max_tokens,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "tie_word_embeddings": True,
        "pad_token_id": 0,
    }


def _qwen3_tensors(s: Shape) -> dict[str, torch.Tensor]:
    r = _Random()
    r.matrix("embed_tokens.weight", s.vocab, s.hidden, 0.05)
    sides = {"q": s.heads * s.head_dim, "k": s.kv_heads * s.head_dim, "v": s.kv_heads * s.head_dim}
    for i in range(s.layers):
        at = f"layers.{i}."
        for part, out in sides.items():
            r.matrix(f"{at}self_attn.{part}_proj.weight", out, s.hidden)
        r.matrix(f"{at}self_attn.o_proj.weight", s.hidden, s.heads * s.head_dim)
        for part in ("q_norm", "k_norm"):
            r.vector(f"{at}self_attn.{part}.weight", s.head_dim, 1.0)
        for part in ("input_layernorm", "post_attention_layernorm"):
            r.vector(f"{at}{part}.weight", s.hidden, 1.0)
        for part in ("gate", "up"):
            r.matrix(f"{at}mlp.{part}_proj.weight", s.inner, s.hidden)
        r.matrix(f"{at}mlp.down_proj.weight", s.hidden, s.inner)
    r.vector("norm.weight", s.hidden, 1.0)
    return r.made
