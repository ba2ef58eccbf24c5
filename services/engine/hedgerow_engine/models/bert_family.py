"""Folders of BERT shape: which names, embeddings and head each family has."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from hedgerow_engine.attention.base import AttentionSpec, ScoreBias
from hedgerow_engine.layers.ops import Activation, Ops, activation_of
from hedgerow_engine.models.base import Head, Model
from hedgerow_engine.models.bert import (
    BERT_NAMES,
    DEBERTA_NAMES,
    DISTILBERT_NAMES,
    MPNET_NAMES,
    BertEncoder,
    BertLayer,
    Block,
    Embeddings,
)
from hedgerow_engine.models.config import Config
from hedgerow_engine.models.heads import ClassifierHead, label_step
from hedgerow_engine.models.relative import BucketBias, DisentangledBias
from hedgerow_engine.models.tasks import row_heads
from hedgerow_engine.weights import Weights
from hedgerow_shared.modelcard import ModelCard

Bias = Callable[[Config, Weights, Ops], "list[ScoreBias]"]


def load_bert(card: ModelCard, weights: Weights, ops: Ops) -> Model:
    """BERT: pooler and classifier where it scores pairs."""
    encoder = _encoder(card, weights, ops, BERT_NAMES)
    weights.skip("embeddings.position_ids", "cls.seq_relationship.*")
    head = _head(card, weights, ops, ("pooler.dense", "tanh"), "classifier")
    return Model(encoder, row_heads(card, weights, ops, head))


def load_roberta(card: ModelCard, weights: Weights, ops: Ops) -> Model:
    """RoBERTa, CamemBERT, XLM-R: positions start after the padding row."""
    encoder = _encoder(card, weights, ops, BERT_NAMES, first=_pad(card) + 1)
    weights.skip("embeddings.position_ids", "pooler.*")
    head = _head(card, weights, ops, ("classifier.dense", "tanh"), "classifier.out_proj")
    heads = row_heads(card, weights, ops, head)
    # BGE-M3's token vectors leave out the first token, which carries its dense vector.
    return Model(encoder, heads, first_token=1 if {"embed", "multivector"} <= set(heads) else 0)


def load_mpnet(card: ModelCard, weights: Weights, ops: Ops) -> Model:
    """MPNet: no token types, one relative bias for all layers."""

    def bias(config: Config, weights: Weights, ops: Ops) -> list[ScoreBias]:
        heads, _, _ = config.heads()
        count = config.integer("relative_attention_num_buckets", default=32)
        table = ops.table(weights.take("encoder.relative_attention_bias.weight", (count, heads)))
        return [BucketBias(table.float())] * config.integer("num_hidden_layers")

    encoder = _encoder(card, weights, ops, MPNET_NAMES, first=_pad(card) + 1, bias=bias)
    weights.skip("embeddings.position_ids", "pooler.*")
    head = _head(card, weights, ops, ("classifier.dense", "tanh"), "classifier.out_proj")
    return Model(encoder, row_heads(card, weights, ops, head))


def load_distilbert(card: ModelCard, weights: Weights, ops: Ops) -> Model:
    Config(card).only("sinusoidal_pos_embds", False)
    encoder = _encoder(card, weights, ops, DISTILBERT_NAMES)
    head = _head(card, weights, ops, ("pre_classifier", "relu"), "classifier")
    return Model(encoder, row_heads(card, weights, ops, head))


def load_deberta(card: ModelCard, weights: Weights, ops: Ops) -> Model:
    """DeBERTa-v2 and v3: positions only through the scores."""
    config = Config(card)
    config.only("conv_kernel_size", 0)
    config.only("embedding_size", card.hidden_size)
    config.only("relative_attention", True)
    encoder = _encoder(card, weights, ops, DEBERTA_NAMES, bias=_disentangled)
    weights.skip("embeddings.position_ids", "lm_predictions.*", "mask_predictions.*")
    activation = activation_of(config.values.get("pooler_hidden_act", "gelu"))
    if activation is None:
        raise config.wrong("pooler_hidden_act", "an activation this engine has")
    head = _head(card, weights, ops, ("pooler.dense", activation), "classifier")
    return Model(encoder, row_heads(card, weights, ops, head))


def _encoder(
    card: ModelCard,
    weights: Weights,
    ops: Ops,
    names: dict[str, str],
    *,
    first: int = 0,
    bias: Bias | None = None,
) -> BertEncoder:
    config = Config(card)
    config.only("position_embedding_type", "absolute")
    config.only("is_decoder", False)
    heads, _, head_dim = config.heads()
    eps = config.number("layer_norm_eps", default=1e-12)
    # DeBERTa may keep positions out of its input; everyone else has a table.
    has_positions = config.flag("position_biased_input", True)
    embeddings = Embeddings(
        config,
        Block(weights, ops, "", eps),
        positions=config.integer("max_position_embeddings") if has_positions else 0,
        first_position=first,
    )
    count = config.integer("num_hidden_layers", "n_layers")
    layers = [
        BertLayer(config, Block(weights, ops, f"{names['layer']}.{i}.", eps), names)
        for i in range(count)
    ]
    biases = None if bias is None else bias(config, weights, ops)
    spec = AttentionSpec(heads, heads, head_dim, _scale(config, head_dim))
    return BertEncoder(embeddings, layers, spec, biases)


def _head(
    card: ModelCard, weights: Weights, ops: Ops, first: tuple[str, Activation], last: str
) -> Head | None:
    if not card.is_scorer:
        weights.skip(f"{first[0]}.*")
        return None
    hidden = card.hidden_size
    steps = [
        label_step(weights, ops, first[0], (hidden, hidden), first[1]),
        label_step(weights, ops, last, (card.num_labels, hidden)),
    ]
    return ClassifierHead(steps)


def _pad(card: ModelCard) -> int:
    value = card.config.get("pad_token_id")
    return 1 if value is None else int(value)


def _position_kinds(config: Config) -> set[str]:
    """DeBERTa's pos_att_type: a list, or one string with bars."""
    kinds = config.values.get("pos_att_type") or []
    return set(kinds.split("|") if isinstance(kinds, str) else kinds)


def _scale(config: Config, head_dim: int) -> float:
    """Scores are divided for each kind of position that is added to them."""
    kinds = _position_kinds(config)
    return (head_dim * (1 + ("c2p" in kinds) + ("p2c" in kinds))) ** -0.5


def _disentangled(config: Config, weights: Weights, ops: Ops) -> list[ScoreBias]:
    heads, _, head_dim = config.heads()
    hidden, kinds = config.hidden_size, _position_kinds(config)
    furthest = int(config.values.get("max_relative_positions") or -1)
    furthest = furthest if furthest > 0 else config.integer("max_position_embeddings")
    buckets = int(config.values.get("position_buckets") or -1)
    span = buckets if buckets > 0 else furthest
    table = ops.table(weights.take("encoder.rel_embeddings.weight", (2 * span, hidden))).float()
    if "layer_norm" in str(config.values.get("norm_rel_ebd", "none")):
        eps = config.number("layer_norm_eps")
        table = ops.norm(Block(weights, ops, "encoder.", eps).norm("LayerNorm", hidden), table)
    shared = config.flag("share_att_key", False)
    scale = _scale(config, head_dim)

    def project(prefix: str, name: str) -> Tensor:
        step = label_step(weights, ops, prefix + name, (hidden, hidden))
        rows = step(table).view(-1, heads, head_dim).transpose(0, 1) * scale
        return rows.to(ops.dtype).contiguous()

    biases: list[ScoreBias] = []
    for i in range(config.integer("num_hidden_layers")):
        prefix = f"encoder.layer.{i}.attention.self."
        names = ("key_proj", "query_proj") if shared else ("pos_key_proj", "pos_query_proj")
        keys = project(prefix, names[0]) if "c2p" in kinds else None
        queries = project(prefix, names[1]) if "p2c" in kinds else None
        biases.append(DisentangledBias(keys, queries, span, buckets, furthest))
    return biases
