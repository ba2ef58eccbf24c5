"""ModernBERT: rotary, gated, norms before; most layers see only their neighbourhood."""

from __future__ import annotations

from typing import cast

from hedgerow_engine.native.embed import EmbedSpec, TableKind
from hedgerow_engine.native.families.config import (
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
    windowed_layers,
)
from hedgerow_engine.native.geometry import Geometry, TailActivation, TailStep
from hedgerow_engine.native.tensors import (
    EVERYWHERE,
    Affine,
    LayerTensors,
    ModelTensors,
    Norm,
    Rope,
)
from hedgerow_engine.weights import Weights
from hedgerow_shared.modelcard import ModelCard, PoolingMode


def geometry(card: ModelCard, words: str) -> Geometry:
    values = card.config
    count, kv, head_dim = heads(card, values)
    return Geometry(
        embed=EmbedSpec(width=card.hidden_size, words=cast(TableKind, words)),
        hidden=card.hidden_size,
        intermediate=number(values, "intermediate_size"),
        heads=count,
        kv_heads=kv,
        head_dim=head_dim,
        norm="layer",
        eps=float(values.get("norm_eps", 1e-5)),
        norm_first=True,
        embed_norm=True,
        activation=activation(values, "hidden_activation"),
        gated=True,
        rotary=True,
        windowed=True,
        poolings=_head_pooling(card) if card.is_scorer else card.pooling.modes,
        tail=_head_steps(card) if card.is_scorer else answer_steps(card),
        unit=card.normalize and not card.is_scorer,
    )


def tensors(card: ModelCard, weights: Weights, g: Geometry) -> ModelTensors:
    values = card.config
    count = number(values, "num_hidden_layers")
    every = int(values.get("global_attn_every_n_layers") or 3)
    windowed = windowed_layers(values, count, every, first_full=True)
    ropes = {
        False: rope(values, "full_attention", key="global_rope_theta", default=160000.0),
        True: rope(values, "sliding_attention", key="local_rope_theta", default=10000.0),
    }
    reach = int(values.get("local_attention") or 128) // 2
    name = "embeddings.tok_embeddings.weight"
    model = ModelTensors(
        geometry=g,
        num_layers=count,
        word=weights.take(name, (card.vocab_size, g.hidden)),
        table=None,
        embed_norm=norm(weights, "embeddings.norm", g.hidden),
        layer=lambda i: _layer(
            weights, g, f"layers.{i}.", ropes[windowed[i]], reach if windowed[i] else EVERYWHERE
        ),
        final_norm=norm(weights, "final_norm", g.hidden),
        tail=_head_tensors(card, weights, g) if card.is_scorer else answer_tensors(card),
    )
    weights.skip("head.*", "decoder.*")
    return model


def _layer(weights: Weights, g: Geometry, at: str, turn: Rope, reach: int) -> LayerTensors:
    """The first layer has no attention norm: the embedding's norm comes right before it."""
    gate, up = halves(affine(weights, f"{at}mlp.Wi", 2 * g.intermediate, g.hidden))
    first = not weights.has(f"{at}attn_norm.weight")
    return LayerTensors(
        qkv=affine(weights, f"{at}attn.Wqkv", g.qkv_width, g.hidden),
        o=affine(weights, f"{at}attn.Wo", g.hidden, g.context_width),
        gate=gate,
        up=up,
        down=affine(weights, f"{at}mlp.Wo", g.hidden, g.intermediate),
        attention_norm=None if first else norm(weights, f"{at}attn_norm", g.hidden),
        mlp_norm=norm(weights, f"{at}mlp_norm", g.hidden),
        rope=turn,
        back=reach,
        ahead=reach,
    )


def _head_pooling(card: ModelCard) -> tuple[PoolingMode]:
    only(card.config, "classifier_pooling", "cls", "mean")
    return ("mean",) if card.config.get("classifier_pooling") == "mean" else ("cls",)


def _head_steps(card: ModelCard) -> tuple[TailStep, ...]:
    """Dense -> activation -> norm -> labels."""
    hidden, eps = card.hidden_size, float(card.config.get("norm_eps", 1e-5))
    act = cast(TailActivation, activation(card.config, "classifier_activation"))
    return (
        TailStep("dense", hidden, hidden, act),
        TailStep("layer", hidden, hidden, eps=eps),
        TailStep("dense", hidden, card.num_labels),
    )


def _head_tensors(card: ModelCard, weights: Weights, g: Geometry) -> tuple[Affine | Norm, ...]:
    return (
        affine(weights, "head.dense", g.hidden, g.hidden),
        norm(weights, "head.norm", g.hidden),
        affine(weights, "classifier", card.num_labels, g.hidden),
    )
