"""BERT and what was trained in its shape, RoBERTa and XLM-R among it, and their rerankers.

The two differ in three places: RoBERTa's positions begin after the padding id, its classifier
is named otherwise, and most of its family has one token type.
"""

from __future__ import annotations

import numpy as np

from hedgerow_engine.native.embed import EmbedSpec
from hedgerow_engine.native.families.config import (
    activation,
    affine,
    dense_steps,
    dense_tensors,
    fused,
    heads,
    norm,
    number,
    only,
)
from hedgerow_engine.native.geometry import Geometry, TailStep
from hedgerow_engine.native.tensors import Affine, Floats, LayerTensors, ModelTensors
from hedgerow_engine.weights import Weights
from hedgerow_shared.modelcard import ModelCard


def geometry(card: ModelCard, table: str) -> Geometry:
    """Post-norm, learned positions, biases everywhere."""
    values = card.config
    only(values, "position_embedding_type", "absolute")
    only(values, "is_decoder", False)
    count, kv, head_dim = heads(card, values)
    embed = EmbedSpec(
        width=card.hidden_size,
        table=table,  # pyright: ignore[reportArgumentType]
        positions=card.max_positions,
        typed=_types(card) > 1,
    )
    return Geometry(
        embed=embed,
        hidden=card.hidden_size,
        intermediate=number(values, "intermediate_size"),
        heads=count,
        kv_heads=kv,
        head_dim=head_dim,
        norm="layer",
        eps=float(values.get("layer_norm_eps", 1e-12)),
        norm_first=False,
        embed_norm=True,
        activation=activation(values, "hidden_act"),
        poolings=("cls",) if card.is_scorer else card.pooling.modes,
        tail=_head_steps(card) if card.is_scorer else dense_steps(card),
        unit=card.normalize and not card.is_scorer,
    )


def tensors(card: ModelCard, weights: Weights, g: Geometry) -> ModelTensors:
    """Takes every tensor of the folder; Weights.finish then finds none left over."""
    word = weights.take("embeddings.word_embeddings.weight", (card.vocab_size, g.hidden))
    model = ModelTensors(
        geometry=g,
        num_layers=number(card.config, "num_hidden_layers"),
        word=word,
        position=_positions(card, weights, g),
        embed_norm=norm(weights, "embeddings.LayerNorm", g.hidden),
        layer=lambda i: _layer(weights, g, f"encoder.layer.{i}."),
        tail=_head_tensors(card, weights) if card.is_scorer else dense_tensors(card),
    )
    weights.skip("embeddings.position_ids", "cls.*", "lm_head.*")
    if not card.is_scorer:
        weights.skip("pooler.*")
    return model


def _is_roberta(card: ModelCard) -> bool:
    return card.model_type != "bert"


def _types(card: ModelCard) -> int:
    return int(card.config.get("type_vocab_size") or 0)


def _positions(card: ModelCard, weights: Weights, g: Geometry) -> Floats:
    """Position rows summed with the type's row: one table, or two below each other."""
    rows = number(card.config, "max_position_embeddings")
    name = "embeddings.position_embeddings.weight"
    table = weights.take(name, (rows, g.hidden)).float32()[rows - card.max_positions :]
    if not _types(card):
        return table
    name = "embeddings.token_type_embeddings.weight"
    types = weights.take(name, (_types(card), g.hidden)).float32()
    return np.concatenate([table + types[i] for i in range(2 if g.embed.typed else 1)])


def _layer(weights: Weights, g: Geometry, at: str) -> LayerTensors:
    attention = f"{at}attention.self."
    names = [f"{attention}{part}" for part in ("query", "key", "value")]
    return LayerTensors(
        qkv=fused(weights, names, [g.hidden] * 3, g.hidden, bias=True),
        o=affine(weights, f"{at}attention.output.dense", g.hidden, g.hidden),
        gate=None,
        up=affine(weights, f"{at}intermediate.dense", g.intermediate, g.hidden),
        down=affine(weights, f"{at}output.dense", g.hidden, g.intermediate),
        attention_norm=norm(weights, f"{at}attention.output.LayerNorm", g.hidden),
        mlp_norm=norm(weights, f"{at}output.LayerNorm", g.hidden),
    )


def _head_steps(card: ModelCard) -> tuple[TailStep, ...]:
    """First token -> dense -> tanh -> labels, in both families."""
    hidden = card.hidden_size
    return (
        TailStep("dense", hidden, hidden, "tanh"),
        TailStep("dense", hidden, card.num_labels),
    )


def _head_tensors(card: ModelCard, weights: Weights) -> tuple[Affine, ...]:
    roberta, hidden = _is_roberta(card), card.hidden_size
    first, last = (
        ("classifier.dense", "classifier.out_proj") if roberta else ("pooler.dense", "classifier")
    )
    return (
        affine(weights, first, hidden, hidden),
        affine(weights, last, card.num_labels, hidden),
    )
