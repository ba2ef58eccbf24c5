"""BERT and what was trained in its shape: MiniLM, BGE, E5, XLM-R, MPNet, DistilBERT.

Post-norm, learned positions, biases everywhere. Families differ in the names of their tensors,
in where positions begin, in token types, and MPNet adds a number to scores by distance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np

from hedgerow_engine.models.config import Config
from hedgerow_engine.native.embed import EmbedSpec, TableKind
from hedgerow_engine.native.families.config import (
    affine,
    answer_steps,
    answer_tensors,
    fused,
    layers,
    mlp_activation,
    norm,
)
from hedgerow_engine.native.geometry import Geometry, TailActivation, TailStep
from hedgerow_engine.native.tensors import Affine, Floats, LayerTensors, ModelTensors
from hedgerow_engine.weights import Weights
from hedgerow_shared.modelcard import ModelCard


@dataclass(frozen=True, slots=True)
class Names:
    """What a family calls its tensors. head: a scorer's dense layer, its activation, labels."""

    layer: str = "encoder.layer"
    query: str = "attention.self.query"
    key: str = "attention.self.key"
    value: str = "attention.self.value"
    o: str = "attention.output.dense"
    attention_norm: str = "attention.output.LayerNorm"
    up: str = "intermediate.dense"
    down: str = "output.dense"
    mlp_norm: str = "output.LayerNorm"
    head: tuple[str, TailActivation, str] = ("classifier.dense", "tanh", "classifier.out_proj")


_BERT = Names(head=("pooler.dense", "tanh", "classifier"))
_MPNET = Names(
    query="attention.attn.q",
    key="attention.attn.k",
    value="attention.attn.v",
    o="attention.attn.o",
    attention_norm="attention.LayerNorm",
)
_DISTILBERT = Names(
    layer="transformer.layer",
    query="attention.q_lin",
    key="attention.k_lin",
    value="attention.v_lin",
    o="attention.out_lin",
    attention_norm="sa_layer_norm",
    up="ffn.lin1",
    down="ffn.lin2",
    mlp_norm="output_layer_norm",
    head=("pre_classifier", "relu", "classifier"),
)
NAMES = {
    "bert": _BERT,
    "roberta": Names(),
    "xlm-roberta": Names(),
    "camembert": Names(),
    "mpnet": _MPNET,
    "distilbert": _DISTILBERT,
}


def geometry(card: ModelCard, words: str) -> Geometry:
    config = Config(card)
    config.only("position_embedding_type", "absolute")
    config.only("is_decoder", False)
    config.only("sinusoidal_pos_embds", False)
    count, head_dim = config.plain_heads()
    return Geometry(
        embed=EmbedSpec(
            width=card.hidden_size,
            words=cast(TableKind, words),
            positions=card.max_positions,
            types=min(2, config.token_types),
        ),
        hidden=card.hidden_size,
        intermediate=config.integer("intermediate_size", "hidden_dim"),
        heads=count,
        kv_heads=count,
        head_dim=head_dim,
        norm="layer",
        eps=config.number("layer_norm_eps", zero=True),
        norm_first=False,
        embed_norm=True,
        activation=mlp_activation(config),
        biased=card.model_type == "mpnet",
        poolings=("cls",) if card.is_scorer else card.pooling.modes,
        tail=_head_steps(card) if card.is_scorer else answer_steps(card),
        unit=card.normalize and not card.is_scorer,
    )


def tensors(card: ModelCard, weights: Weights, g: Geometry) -> ModelTensors:
    names = NAMES[card.model_type]
    bias = _distance_bias(card, weights, g) if g.biased else None
    model = ModelTensors(
        geometry=g,
        num_layers=Config(card).layers(),
        word=weights.take("embeddings.word_embeddings.weight", (card.vocab_size, g.hidden)),
        table=_table(card, weights, g),
        embed_norm=norm(weights, "embeddings.LayerNorm", g.hidden),
        layer=layers(lambda i: _layer(weights, g, names, f"{names.layer}.{i}.", bias)),
        tail=_head_tensors(card, weights) if card.is_scorer else answer_tensors(card),
    )
    weights.skip("cls.*", "lm_head.*")
    weights.skip("vocab_transform.*", "vocab_layer_norm.*", "vocab_projector.*")
    if not card.is_scorer or not names.head[0].startswith("pooler"):
        weights.skip("pooler.*")
    return model


def _table(card: ModelCard, weights: Weights, g: Geometry) -> Floats:
    """Position rows, from the first that is used, with each type's row added."""
    config = Config(card)
    rows = config.integer("max_position_embeddings")
    name = "embeddings.position_embeddings.weight"
    table = weights.take(name, (rows, g.hidden)).float32()[rows - card.max_positions :]
    if not g.embed.types:
        return table
    name = "embeddings.token_type_embeddings.weight"
    types = weights.take(name, (config.token_types, g.hidden)).float32()
    return np.concatenate([table + types[i] for i in range(g.embed.types)])


def _layer(
    weights: Weights, g: Geometry, names: Names, at: str, bias: Floats | None
) -> LayerTensors:
    qkv = [at + name for name in (names.query, names.key, names.value)]
    return LayerTensors(
        qkv=fused(weights, qkv, [g.hidden] * 3, g.hidden),
        o=affine(weights, at + names.o, g.hidden, g.hidden),
        gate=None,
        up=affine(weights, at + names.up, g.intermediate, g.hidden),
        down=affine(weights, at + names.down, g.hidden, g.intermediate),
        attention_norm=norm(weights, at + names.attention_norm, g.hidden),
        mlp_norm=norm(weights, at + names.mlp_norm, g.hidden),
        bias=bias,
    )


def _head_steps(card: ModelCard) -> tuple[TailStep, ...]:
    """First token -> dense -> activation -> labels."""
    hidden, act = card.hidden_size, NAMES[card.model_type].head[1]
    return TailStep("dense", hidden, hidden, act), TailStep("dense", hidden, card.num_labels)


def _head_tensors(card: ModelCard, weights: Weights) -> tuple[Affine, ...]:
    first, _, last = NAMES[card.model_type].head
    hidden = card.hidden_size
    return (
        affine(weights, first, hidden, hidden),
        affine(weights, last, card.num_labels, hidden),
    )


def _distance_bias(card: ModelCard, weights: Weights, g: Geometry) -> Floats:
    """MPNet: [heads, 2 * n - 1] by key - row. Half of the buckets are for keys before the row;
    of each half, small distances have one each and larger ones share them by their logarithm."""
    # transformers' own code counts 32, whatever the key says.
    Config(card).only("relative_attention_num_buckets", 32)
    buckets = 32
    name = "encoder.relative_attention_bias.weight"
    table = weights.take(name, (buckets, g.heads)).float32()
    distance = np.arange(1 - card.max_seq_len, card.max_seq_len)
    half, exact = buckets // 2, buckets // 4
    size = np.maximum(np.abs(distance), 1).astype(np.float32)
    ratio = np.log(size / np.float32(exact)) / np.log(np.float32(128 / exact))
    shared = np.minimum(exact + (ratio * (half - exact)).astype(np.int64), half - 1)
    bucket = np.where(np.abs(distance) < exact, np.abs(distance), shared)
    return np.ascontiguousarray(table[bucket + half * (distance > 0)].T)
