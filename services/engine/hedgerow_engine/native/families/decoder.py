"""Decoder-shaped trunks: Qwen3, Qwen2, Llama, Mistral, Gemma 3, EuroBERT, pplx-embed.

One shape with switches: RMS norms before attention and MLP, rotary positions, grouped heads, a
gated MLP. An embedder may look both ways; then only the mask differs.
"""

from __future__ import annotations

from typing import cast

import numpy as np

from hedgerow_engine.models.config import Config
from hedgerow_engine.models.decoder_config import (
    HEAD_NORMS,
    biases,
    both_ways,
    is_gemma,
    reaches,
    softmax_scale,
)
from hedgerow_engine.models.logit_score import score_rows
from hedgerow_engine.native.embed import EmbedSpec, TableKind
from hedgerow_engine.native.families.config import (
    UnsupportedError,
    affine,
    answer_steps,
    answer_tensors,
    fused,
    layers,
    mlp_activation,
    rope,
)
from hedgerow_engine.native.geometry import Geometry, TailStep
from hedgerow_engine.native.tensors import (
    EVERYWHERE,
    Affine,
    Floats,
    LayerTensors,
    ModelTensors,
    Norm,
)
from hedgerow_engine.weights import Weights
from hedgerow_shared.modelcard import ModelCard


def geometry(card: ModelCard, words: str) -> Geometry:
    config = Config(card)
    config.only("attn_logit_softcapping")
    if not card.is_scorer and not any(m.kind == "pooling" for m in card.modules):
        raise UnsupportedError("modules.json: no Pooling")
    count, kv, head_dim = config.heads()
    gemma = is_gemma(config)
    return Geometry(
        embed=EmbedSpec(
            width=card.hidden_size,
            words=cast(TableKind, words),
            scale=card.hidden_size**0.5 if gemma else 1.0,
        ),
        hidden=card.hidden_size,
        intermediate=config.integer("intermediate_size"),
        heads=count,
        kv_heads=kv,
        head_dim=head_dim,
        norm="rms",
        eps=config.number("rms_norm_eps", zero=True),
        norm_first=True,
        embed_norm=False,
        activation=mlp_activation(config),
        gated=True,
        rotary=True,
        qk_norm=card.model_type in HEAD_NORMS,
        sandwich=gemma,
        windowed=not both_ways(config) or any(r is not None for r in reaches(config)),
        poolings=("lasttoken",) if card.is_scorer else card.pooling.modes,
        tail=_head_steps(card) if card.is_scorer else answer_steps(card),
        unit=card.normalize and not card.is_scorer,
    )


def tensors(card: ModelCard, weights: Weights, g: Geometry) -> ModelTensors:
    config = Config(card)
    reader = _Layers(config, weights, g)
    model = ModelTensors(
        geometry=g,
        num_layers=config.layers(),
        word=weights.take("embed_tokens.weight", (card.vocab_size, g.hidden)),
        table=None,
        embed_norm=None,
        layer=layers(reader.read),
        final_norm=Norm(reader.norm("norm")),
        scale=softmax_scale(config, g.head_dim),
        tail=_head_tensors(card, weights) if card.is_scorer else answer_tensors(card),
    )
    weights.skip("lm_head.*")
    return model


class _Layers:
    """Reads one layer at a time."""

    def __init__(self, config: Config, weights: Weights, g: Geometry) -> None:
        self._weights, self._g = weights, g
        # Gemma stores its norm weights less one.
        self._less = 1.0 if is_gemma(config) else 0.0
        self._both_ways, self._reaches = both_ways(config), reaches(config)
        self._biases = biases(config)
        full = rope(config, "full_attention")
        local = rope(config, "sliding_attention") if is_gemma(config) else full
        self._ropes = {False: full, True: local}

    def read(self, i: int) -> LayerTensors:
        weights, g, at, has = self._weights, self._g, f"layers.{i}.", self._biases
        back, ahead = self._reach(i)
        sizes = [g.context_width, g.kv_heads * g.head_dim, g.kv_heads * g.head_dim]
        names = [f"{at}self_attn.{part}_proj" for part in "qkv"]
        gate, up = (
            affine(weights, f"{at}mlp.{part}_proj", g.intermediate, g.hidden, bias=has.mlp)
            for part in ("gate", "up")
        )
        mlp_norm = "pre_feedforward_layernorm" if g.sandwich else "post_attention_layernorm"
        return LayerTensors(
            qkv=fused(weights, names, sizes, g.hidden, bias=has.qkv),
            o=affine(weights, f"{at}self_attn.o_proj", g.hidden, g.context_width, bias=has.o),
            gate=gate,
            up=up,
            down=affine(weights, f"{at}mlp.down_proj", g.hidden, g.intermediate, bias=has.mlp),
            attention_norm=Norm(self.norm(f"{at}input_layernorm")),
            mlp_norm=Norm(self.norm(at + mlp_norm)),
            after_attention_norm=self._sandwich(f"{at}post_attention_layernorm"),
            after_mlp_norm=self._sandwich(f"{at}post_feedforward_layernorm"),
            q_norm=self._head_norm(f"{at}self_attn.q_norm"),
            k_norm=self._head_norm(f"{at}self_attn.k_norm"),
            rope=self._ropes[self._reaches[i] is not None],
            back=back,
            ahead=ahead,
        )

    def norm(self, name: str, width: int | None = None) -> Floats:
        weight = self._weights.take(f"{name}.weight", (width or self._g.hidden,)).float32()
        return weight + np.float32(self._less) if self._less else weight

    def _sandwich(self, name: str) -> Floats | None:
        return self.norm(name) if self._g.sandwich else None

    def _head_norm(self, name: str) -> Floats | None:
        return self.norm(name, self._g.head_dim) if self._g.qk_norm else None

    def _reach(self, i: int) -> tuple[int, int]:
        """(back, ahead)."""
        reach = self._reaches[i]
        back = EVERYWHERE if reach is None else min(reach, EVERYWHERE)
        return back, back if self._both_ways else 0


def _head_steps(card: ModelCard) -> tuple[TailStep, ...]:
    return (TailStep("dense", card.hidden_size, max(1, card.num_labels)),)


def _head_tensors(card: ModelCard, weights: Weights) -> tuple[Affine, ...]:
    """Labels of the last token, or the score of a reranker that answers yes or no."""
    rows = score_rows(card, weights)
    if rows is not None:
        return (Affine(rows),)
    return (affine(weights, "score", card.num_labels, card.hidden_size, bias=False),)
