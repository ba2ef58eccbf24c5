"""ModernBERT: rotary, gated, norms before; most layers see only their neighbourhood."""

from __future__ import annotations

from typing import cast

from hedgerow_engine.models.config import Config
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
    config = Config(card)
    count, head_dim = config.plain_heads()
    return Geometry(
        embed=EmbedSpec(width=card.hidden_size, words=cast(TableKind, words)),
        hidden=card.hidden_size,
        intermediate=config.integer("intermediate_size"),
        heads=count,
        kv_heads=count,
        head_dim=head_dim,
        norm="layer",
        eps=config.number("norm_eps", zero=True),
        norm_first=True,
        embed_norm=True,
        activation=mlp_activation(config),
        gated=True,
        rotary=True,
        windowed=True,
        poolings=_head_pooling(card) if card.is_scorer else card.pooling.modes,
        tail=_head_steps(card) if card.is_scorer else answer_steps(card),
        unit=card.normalize and not card.is_scorer,
    )


def tensors(card: ModelCard, weights: Weights, g: Geometry) -> ModelTensors:
    config = Config(card)
    count = config.layers()
    every = config.integer("global_attn_every_n_layers")
    windowed = config.layer_kinds(count, every, first_full=True)
    ropes = {False: rope(config, "full_attention"), True: rope(config, "sliding_attention")}
    reach = min(config.integer("local_attention") // 2, EVERYWHERE)
    reader = _Layers(config, weights, g)
    name = "embeddings.tok_embeddings.weight"
    model = ModelTensors(
        geometry=g,
        num_layers=count,
        word=weights.take(name, (card.vocab_size, g.hidden)),
        table=None,
        embed_norm=reader.norm("embeddings.norm"),
        layer=layers(
            lambda i: reader.read(i, ropes[windowed[i]], reach if windowed[i] else EVERYWHERE)
        ),
        final_norm=reader.norm("final_norm"),
        tail=_head_tensors(card, weights, g) if card.is_scorer else answer_tensors(card),
    )
    weights.skip("head.*", "decoder.*")
    return model


class _Layers:
    """Reads one layer at a time. The config says which parts have a bias."""

    def __init__(self, config: Config, weights: Weights, g: Geometry) -> None:
        self._weights, self._g = weights, g
        self._attention, self._mlp, self._norm = (
            config.flag(key) for key in ("attention_bias", "mlp_bias", "norm_bias")
        )

    def norm(self, name: str) -> Norm:
        return norm(self._weights, name, self._g.hidden, bias=self._norm)

    def read(self, i: int, turn: Rope, reach: int) -> LayerTensors:
        """The first layer has no attention norm: the embedding's norm comes right before it."""
        weights, g, at = self._weights, self._g, f"layers.{i}."
        double = affine(weights, f"{at}mlp.Wi", 2 * g.intermediate, g.hidden, bias=self._mlp)
        gate, up = halves(double)
        width = g.context_width
        return LayerTensors(
            qkv=affine(weights, f"{at}attn.Wqkv", g.qkv_width, g.hidden, bias=self._attention),
            o=affine(weights, f"{at}attn.Wo", g.hidden, width, bias=self._attention),
            gate=gate,
            up=up,
            down=affine(weights, f"{at}mlp.Wo", g.hidden, g.intermediate, bias=self._mlp),
            attention_norm=self.norm(f"{at}attn_norm") if i else None,
            mlp_norm=self.norm(f"{at}mlp_norm"),
            rope=turn,
            back=reach,
            ahead=reach,
        )


def _head_pooling(card: ModelCard) -> tuple[PoolingMode]:
    mean = Config(card).choice("classifier_pooling", "cls", "mean") == "mean"
    return ("mean",) if mean else ("cls",)


def _head_steps(card: ModelCard) -> tuple[TailStep, ...]:
    """Dense -> activation -> norm -> labels."""
    config, hidden = Config(card), card.hidden_size
    eps = config.number("norm_eps", zero=True)
    act: TailActivation = config.activation("classifier_activation")
    return (
        TailStep("dense", hidden, hidden, act),
        TailStep("layer", hidden, hidden, eps=eps),
        TailStep("dense", hidden, card.num_labels),
    )


def _head_tensors(card: ModelCard, weights: Weights, g: Geometry) -> tuple[Affine | Norm, ...]:
    config = Config(card)
    bias = config.flag("classifier_bias")
    return (
        affine(weights, "head.dense", g.hidden, g.hidden, bias=bias),
        norm(weights, "head.norm", g.hidden, bias=config.flag("norm_bias")),
        affine(weights, "classifier", card.num_labels, g.hidden),
    )
