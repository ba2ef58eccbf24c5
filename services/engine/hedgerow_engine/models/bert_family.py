"""Folders of BERT shape: which names, embeddings and head each family has."""

from __future__ import annotations

from collections.abc import Callable

from hedgerow_engine.attention.base import AttentionSpec, ScoreBias
from hedgerow_engine.layers.ops import Activation, Ops
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
from hedgerow_engine.models.deberta import disentangled, score_scale
from hedgerow_engine.models.heads import ClassifierHead, label_step
from hedgerow_engine.models.relative import BucketBias
from hedgerow_engine.models.tasks import row_heads
from hedgerow_engine.weights import Weights
from hedgerow_shared.modelcard import ModelCard

Bias = Callable[[Config, Weights, Ops], "list[ScoreBias]"]


def load_bert(card: ModelCard, weights: Weights, ops: Ops) -> Model:
    """BERT: pooler and classifier where it scores pairs."""
    encoder = _encoder(card, weights, ops, BERT_NAMES)
    weights.skip("cls.seq_relationship.*")
    head = _head(card, weights, ops, ("pooler.dense", "tanh"), "classifier")
    return Model(encoder, row_heads(card, weights, ops, head))


def load_roberta(card: ModelCard, weights: Weights, ops: Ops) -> Model:
    """RoBERTa, CamemBERT, XLM-R: positions start after the padding row."""
    encoder = _encoder(card, weights, ops, BERT_NAMES)
    weights.skip("pooler.*")
    head = _head(card, weights, ops, ("classifier.dense", "tanh"), "classifier.out_proj")
    heads = row_heads(card, weights, ops, head)
    # BGE-M3's token vectors leave out the first token, which carries its dense vector.
    return Model(encoder, heads, first_token=1 if {"embed", "multivector"} <= set(heads) else 0)


def load_mpnet(card: ModelCard, weights: Weights, ops: Ops) -> Model:
    """MPNet: no token types, one relative bias for all layers."""

    def bias(config: Config, weights: Weights, ops: Ops) -> list[ScoreBias]:
        heads, _ = config.plain_heads()
        # transformers' own code counts 32, whatever the key says.
        config.only("relative_attention_num_buckets", 32)
        table = ops.table(weights.take("encoder.relative_attention_bias.weight", (32, heads)))
        return [BucketBias(table.float())] * config.layers()

    encoder = _encoder(card, weights, ops, MPNET_NAMES, bias=bias)
    weights.skip("pooler.*")
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
    if not config.flag("relative_attention"):
        raise config.wrong(("relative_attention",), "true")
    encoder = _encoder(card, weights, ops, DEBERTA_NAMES, bias=disentangled)
    weights.skip("lm_predictions.*", "mask_predictions.*")
    activation = config.activation("pooler_hidden_act")
    head = _head(card, weights, ops, ("pooler.dense", activation), "classifier")
    return Model(encoder, row_heads(card, weights, ops, head))


def _encoder(
    card: ModelCard,
    weights: Weights,
    ops: Ops,
    names: dict[str, str],
    *,
    bias: Bias | None = None,
) -> BertEncoder:
    config = Config(card)
    config.only("position_embedding_type", "absolute")
    config.only("is_decoder", False)
    heads, head_dim = config.plain_heads()
    eps = config.number("layer_norm_eps", zero=True)
    # DeBERTa may keep positions out of its input; everyone else has a table.
    has_positions = config.flag("position_biased_input", True)
    positions = config.integer("max_position_embeddings")
    embeddings = Embeddings(
        config,
        Block(weights, ops, "", eps),
        positions=positions if has_positions else 0,
        first_position=positions - card.max_positions,
    )
    count = config.layers()
    layers = [
        BertLayer(config, Block(weights, ops, f"{names['layer']}.{i}.", eps), names)
        for i in range(count)
    ]
    biases = None if bias is None else bias(config, weights, ops)
    spec = AttentionSpec(heads, heads, head_dim, score_scale(config, head_dim))
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
