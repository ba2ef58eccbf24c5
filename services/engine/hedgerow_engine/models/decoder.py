"""Decoder-shaped trunks: Qwen3, Qwen2, Llama, Mistral, Gemma 3, EuroBERT, pplx-embed.

One shape with switches: norms before attention and MLP, rotary positions, grouped heads, a
gated MLP. An embedder may look both ways; then only the mask differs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hedgerow_engine.attention.base import AttentionSpec, attend
from hedgerow_engine.layers.ops import Activation, GatedLinear, Linear, Norm, Ops
from hedgerow_engine.layers.rotary import RopeParams, Rotary, Rotation
from hedgerow_engine.models.base import ModelInputs
from hedgerow_engine.models.config import Config
from hedgerow_engine.models.decoder_config import biases, is_gemma
from hedgerow_engine.models.rope import angles
from hedgerow_engine.weights import Weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Flavour:
    """What sets one decoder family apart from the others.

    head_norms: query and key heads are normed before they are rotated
    sandwich: attention and MLP are normed after as well as before (Gemma)
    norm_plus_one: norm weights are stored less one (Gemma)
    scaled_embeddings: rows are multiplied by the root of the hidden size (Gemma)
    """

    head_norms: bool = False
    sandwich: bool = False
    norm_plus_one: bool = False
    scaled_embeddings: bool = False


class Parts:
    """Makes the pieces of one layer from the tensors under its prefix."""

    def __init__(self, weights: Weights, ops: Ops, prefix: str, eps: float, plus_one: bool) -> None:
        self.weights, self.ops, self.prefix = weights, ops, prefix
        self._eps, self._plus_one = eps, plus_one

    def norm(self, name: str, size: int) -> Norm:
        weight = self.weights.take(f"{self.prefix}{name}.weight", (size,))
        return self.ops.rms_norm(weight, self._eps, plus_one=self._plus_one)

    def linear(
        self, names: tuple[str, ...], outs: tuple[int, ...], size: int, has_bias: bool
    ) -> Linear:
        """One linear over the rows of several."""
        full = [self.prefix + name for name in names]
        weight = self.weights.fused([f"{n}.weight" for n in full], [(o, size) for o in outs])
        bias = None
        if has_bias:
            bias = self.weights.fused([f"{n}.bias" for n in full], [(o,) for o in outs])
        return self.ops.linear(weight, bias)

    def gated(self, hidden: int, inner: int, activation: Activation, bias: bool) -> GatedLinear:
        """The MLP's entry."""
        names = [f"{self.prefix}mlp.{n}_proj" for n in ("gate", "up")]
        gate, up = (self.weights.take(f"{n}.weight", (inner, hidden)) for n in names)
        if not bias:
            return self.ops.gated_linear(gate, up, activation)
        gate_bias, up_bias = (self.weights.take(f"{n}.bias", (inner,)) for n in names)
        return self.ops.gated_linear(gate, up, activation, (gate_bias, up_bias))


class DecoderLayer:
    """Attention and gated MLP over a running sum of residuals."""

    def __init__(self, config: Config, parts: Parts, flavour: Flavour, spec: AttentionSpec) -> None:
        hidden, inner, ops = config.hidden_size, config.integer("intermediate_size"), parts.ops
        heads, kv_heads, dim = spec.num_heads, spec.num_kv_heads, spec.head_dim
        has = biases(config)
        self.spec, self.ops = spec, ops
        self.input_norm = parts.norm("input_layernorm", hidden)
        self.qkv_proj = parts.linear(
            ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
            (heads * dim, kv_heads * dim, kv_heads * dim),
            hidden,
            has.qkv,
        )
        self.o_proj = parts.linear(("self_attn.o_proj",), (hidden,), heads * dim, has.o)
        self.q_norm = parts.norm("self_attn.q_norm", dim) if flavour.head_norms else None
        self.k_norm = parts.norm("self_attn.k_norm", dim) if flavour.head_norms else None
        self.attention_norm = parts.norm("post_attention_layernorm", hidden)
        self.mlp_norms = (
            (
                parts.norm("pre_feedforward_layernorm", hidden),
                parts.norm("post_feedforward_layernorm", hidden),
            )
            if flavour.sandwich
            else None
        )
        self.gate_up_proj = parts.gated(hidden, inner, config.mlp_activation(), has.mlp)
        self.down_proj = parts.linear(("mlp.down_proj",), (hidden,), inner, has.mlp)

    def forward(
        self, normed: Tensor, residual: Tensor, rotation: Rotation, inputs: ModelInputs, after: Norm
    ) -> tuple[Tensor, Tensor]:
        """(normed by `after`, residual): `after` is the next layer's input norm, or the last."""
        ops = self.ops
        context = self._attend(normed, rotation, inputs)
        if self.mlp_norms is None:
            normed, residual = ops.linear_add_norm(
                self.o_proj, context, residual, self.attention_norm
            )
            inner = self.gate_up_proj(normed)
            return ops.linear_add_norm(self.down_proj, inner, residual, after)
        before_mlp, after_mlp = self.mlp_norms
        residual = residual + ops.norm(self.attention_norm, self.o_proj(context))
        inner = self.gate_up_proj(ops.norm(before_mlp, residual))
        residual = residual + ops.norm(after_mlp, self.down_proj(inner))
        return ops.norm(after, residual), residual

    def _attend(self, normed: Tensor, rotation: Rotation, inputs: ModelInputs) -> Tensor:
        spec = self.spec
        qkv = self.qkv_proj(normed).view(-1, spec.num_heads + 2 * spec.num_kv_heads, spec.head_dim)
        last_key = spec.num_heads + spec.num_kv_heads
        q = self.ops.rotate(qkv[:, : spec.num_heads], rotation, self.q_norm)
        k = self.ops.rotate(qkv[:, spec.num_heads : last_key], rotation, self.k_norm)
        return attend(q, k, qkv[:, last_key:], inputs.attention, spec)


class DecoderEncoder:
    """Satisfies `Encoder`. `specs` holds each layer's attention."""

    def __init__(
        self,
        config: Config,
        weights: Weights,
        ops: Ops,
        flavour: Flavour,
        specs: list[AttentionSpec],
        max_positions: int,
    ) -> None:
        hidden, eps = config.hidden_size, config.number("rms_norm_eps", zero=True)
        self.ops = ops
        self.words = ops.table(weights.take("embed_tokens.weight", (config.vocab_size, hidden)))
        self.scale = hidden**0.5 if flavour.scaled_embeddings else 1.0
        plus_one = flavour.norm_plus_one
        self.layers = [
            DecoderLayer(config, Parts(weights, ops, f"layers.{i}.", eps, plus_one), flavour, spec)
            for i, spec in enumerate(specs)
        ]
        self.final_norm = Parts(weights, ops, "", eps, plus_one).norm("norm", hidden)
        dim = specs[0].head_dim
        self.full = Rotary(RopeParams(*angles(config)), dim, max_positions)
        self.local = self.full
        if is_gemma(config):
            local = RopeParams(*angles(config, "sliding_attention"))
            self.local = Rotary(local, dim, max_positions)

    def forward(self, inputs: ModelInputs) -> Tensor:
        residual = torch.embedding(self.words, inputs.input_ids)
        if self.scale != 1.0:
            residual = residual.float() * self.scale
        residual = residual.to(self.ops.dtype)
        full = self.full.at(inputs.positions)
        local = full if self.local is self.full else self.local.at(inputs.positions)
        normed = self.ops.norm(self.layers[0].input_norm, residual)
        norms = [layer.input_norm for layer in self.layers[1:]] + [self.final_norm]
        for layer, after in zip(self.layers, norms, strict=True):
            rotation = full if layer.spec.window is None else local
            normed, residual = layer.forward(normed, residual, rotation, inputs, after)
        return normed
