"""BERT with rotary positions and a gated MLP: GTE (v1.5, multilingual) and Nomic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from hedgerow_engine.native.embed import EmbedSpec, TableKind
from hedgerow_engine.native.families.config import (
    UnsupportedError,
    activation,
    affine,
    answer_steps,
    answer_tensors,
    halves,
    heads,
    norm,
    number,
    only,
    rope,
)
from hedgerow_engine.native.geometry import Geometry, TailStep
from hedgerow_engine.native.tensors import Affine, Floats, LayerTensors, ModelTensors, Rope
from hedgerow_engine.weights import Weights
from hedgerow_shared.modelcard import ModelCard


@dataclass(frozen=True, slots=True)
class Names:
    """What a family calls its tensors."""

    layer: str
    qkv: str
    o: str
    attention_norm: str
    down: str
    mlp_norm: str
    embed_norm: str


_GTE = Names(
    "encoder.layer",
    "attention.qkv_proj",
    "attention.o_proj",
    "attn_ln",
    "mlp.down_proj",
    "mlp_ln",
    "embeddings.LayerNorm",
)
_NOMIC = Names(
    "encoder.layers", "attn.Wqkv", "attn.out_proj", "norm1", "mlp.fc2", "norm2", "emb_ln"
)


def geometry(card: ModelCard, words: str) -> Geometry:
    values = card.config
    nomic = _is_nomic(card)
    _check_nomic(values) if nomic else _check_gte(values)
    count, kv, head_dim = heads(card, values)
    eps = values.get("layer_norm_eps", values.get("layer_norm_epsilon", 1e-12))
    types = min(2, int(values.get("type_vocab_size") or 0))
    return Geometry(
        embed=EmbedSpec(width=card.hidden_size, words=cast(TableKind, words), types=types),
        hidden=card.hidden_size,
        intermediate=number(values, "intermediate_size", "n_inner"),
        heads=count,
        kv_heads=kv,
        head_dim=head_dim,
        norm="layer",
        eps=float(eps),
        norm_first=False,
        embed_norm=True,
        activation="silu" if nomic else activation(values, "hidden_act"),
        gated=True,
        rotary=True,
        poolings=("cls",) if card.is_scorer else card.pooling.modes,
        tail=_head_steps(card) if card.is_scorer else answer_steps(card),
        unit=card.normalize and not card.is_scorer,
    )


def tensors(card: ModelCard, weights: Weights, g: Geometry) -> ModelTensors:
    nomic = _is_nomic(card)
    names = _NOMIC if nomic else _GTE
    turn = _rope(card)
    model = ModelTensors(
        geometry=g,
        num_layers=number(card.config, "num_hidden_layers", "n_layer"),
        word=weights.take("embeddings.word_embeddings.weight", (card.vocab_size, g.hidden)),
        table=_types(card, weights, g),
        embed_norm=norm(weights, names.embed_norm, g.hidden),
        layer=lambda i: _layer(weights, g, names, f"{names.layer}.{i}.", turn),
        tail=_head_tensors(card, weights) if card.is_scorer else answer_tensors(card),
    )
    weights.skip("pooler.*", "classifier.*", "embeddings.position_ids", "cls.*", "lm_head.*")
    return model


def _layer(weights: Weights, g: Geometry, names: Names, at: str, turn: Rope) -> LayerTensors:
    if names is _NOMIC:
        up, gate = (
            affine(weights, f"{at}mlp.{n}", g.intermediate, g.hidden) for n in ("fc11", "fc12")
        )
    else:
        up, gate = halves(affine(weights, f"{at}mlp.up_gate_proj", 2 * g.intermediate, g.hidden))
    return LayerTensors(
        qkv=affine(weights, at + names.qkv, g.qkv_width, g.hidden),
        o=affine(weights, at + names.o, g.hidden, g.context_width),
        gate=gate,
        up=up,
        down=affine(weights, at + names.down, g.hidden, g.intermediate),
        attention_norm=norm(weights, at + names.attention_norm, g.hidden),
        mlp_norm=norm(weights, at + names.mlp_norm, g.hidden),
        rope=turn,
    )


def _is_nomic(card: ModelCard) -> bool:
    return card.model_type == "nomic_bert"


def _check_gte(values: Any) -> None:
    only(values, "logn_attention_scale", False)
    only(values, "logn_attention_clip1", False)
    only(values, "position_embedding_type", "rope")
    only(values, "layer_norm_type", "layer_norm")


def _check_nomic(values: Any) -> None:
    for key in ("num_experts", "prenorm", "use_rms_norm", "causal", "rotary_emb_interleaved"):
        only(values, key, 0, False)
    only(values, "rotary_emb_fraction", 1, 1.0)
    only(values, "activation_function", "swiglu", "silu")
    if values.get("rotary_scaling_factor") is not None:
        raise UnsupportedError("config.json: rotary_scaling_factor")


def _rope(card: ModelCard) -> Rope:
    if _is_nomic(card):
        return rope(card.config, key="rotary_emb_base", default=1000.0)
    return rope(card.config, default=160000.0)


def _types(card: ModelCard, weights: Weights, g: Geometry) -> Floats | None:
    if not g.embed.types:
        return None
    rows = int(card.config["type_vocab_size"])
    name = "embeddings.token_type_embeddings.weight"
    return weights.take(name, (rows, g.hidden)).float32()[: g.embed.types]


def _head_steps(card: ModelCard) -> tuple[TailStep, ...]:
    hidden = card.hidden_size
    return TailStep("dense", hidden, hidden, "tanh"), TailStep("dense", hidden, card.num_labels)


def _head_tensors(card: ModelCard, weights: Weights) -> tuple[Affine, ...]:
    hidden = card.hidden_size
    return (
        affine(weights, "pooler.dense", hidden, hidden),
        affine(weights, "classifier", card.num_labels, hidden),
    )
