"""BERT with rotary positions and a gated MLP: GTE (v1.5, multilingual) and Nomic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from hedgerow_engine.models.config import Config
from hedgerow_engine.models.rotary_config import biases, check_rotary_bert
from hedgerow_engine.native.embed import EmbedSpec, TableKind
from hedgerow_engine.native.families.config import (
    affine,
    answer_steps,
    answer_tensors,
    halves,
    layers,
    mlp_activation,
    norm,
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
    config = Config(card)
    check_rotary_bert(config)
    count, head_dim = config.plain_heads()
    types = min(2, config.token_types)
    return Geometry(
        embed=EmbedSpec(width=card.hidden_size, words=cast(TableKind, words), types=types),
        hidden=card.hidden_size,
        intermediate=config.integer("intermediate_size", "n_inner"),
        heads=count,
        kv_heads=count,
        head_dim=head_dim,
        norm="layer",
        eps=config.number("layer_norm_eps", "layer_norm_epsilon", zero=True),
        norm_first=False,
        embed_norm=True,
        activation="silu" if _is_nomic(card) else mlp_activation(config),
        gated=True,
        rotary=True,
        poolings=("cls",) if card.is_scorer else card.pooling.modes,
        tail=_head_steps(card) if card.is_scorer else answer_steps(card),
        unit=card.normalize and not card.is_scorer,
    )


def tensors(card: ModelCard, weights: Weights, g: Geometry) -> ModelTensors:
    config = Config(card)
    names = _NOMIC if _is_nomic(card) else _GTE
    turn = rope(config)
    model = ModelTensors(
        geometry=g,
        num_layers=config.layers(),
        word=weights.take("embeddings.word_embeddings.weight", (card.vocab_size, g.hidden)),
        table=_types(card, weights, g),
        embed_norm=norm(weights, names.embed_norm, g.hidden),
        layer=layers(lambda i: _layer(config, weights, g, names, f"{names.layer}.{i}.", turn)),
        tail=_head_tensors(card, weights) if card.is_scorer else answer_tensors(card),
    )
    weights.skip("pooler.*", "classifier.*", "cls.*", "lm_head.*")
    return model


def _layer(
    config: Config, weights: Weights, g: Geometry, names: Names, at: str, turn: Rope
) -> LayerTensors:
    has = biases(config)
    if names is _NOMIC:
        up, gate = (
            affine(weights, f"{at}mlp.{n}", g.intermediate, g.hidden, bias=has.up)
            for n in ("fc11", "fc12")
        )
    else:
        double = affine(weights, f"{at}mlp.up_gate_proj", 2 * g.intermediate, g.hidden, bias=False)
        up, gate = halves(double)
    return LayerTensors(
        qkv=affine(weights, at + names.qkv, g.qkv_width, g.hidden, bias=has.attention),
        o=affine(weights, at + names.o, g.hidden, g.context_width, bias=has.attention),
        gate=gate,
        up=up,
        down=affine(weights, at + names.down, g.hidden, g.intermediate, bias=has.down),
        attention_norm=norm(weights, at + names.attention_norm, g.hidden),
        mlp_norm=norm(weights, at + names.mlp_norm, g.hidden),
        rope=turn,
    )


def _is_nomic(card: ModelCard) -> bool:
    return card.model_type == "nomic_bert"


def _types(card: ModelCard, weights: Weights, g: Geometry) -> Floats | None:
    if not g.embed.types:
        return None
    rows = card.token_types
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
