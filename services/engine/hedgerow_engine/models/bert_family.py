"""BERT, RoBERTa and XLM-R folders: the trunk, and the head that `architectures` names."""

from __future__ import annotations

from hedgerow_engine.layers.ops import Ops
from hedgerow_engine.models.base import Head, Model
from hedgerow_engine.models.bert import BertEncoder
from hedgerow_engine.models.config import Config
from hedgerow_engine.models.heads import ClassifierHead, EmbedHead
from hedgerow_engine.weights import Weights
from hedgerow_shared.modelcard import ModelCard
from hedgerow_shared.ragged import Task


def load_bert(card: ModelCard, weights: Weights, ops: Ops) -> Model:
    """BertModel, BertForMaskedLM (as an embedder) and BertForSequenceClassification."""
    config = Config(card)
    encoder = BertEncoder(config, weights, ops, first_position=0)
    weights.skip("embeddings.position_ids", "cls.*")
    heads: dict[Task, Head] = {}
    if card.is_scorer:
        hidden = (card.hidden_size, card.hidden_size)
        first = ops.linear(
            weights.take("pooler.dense.weight", hidden),
            weights.take("pooler.dense.bias", hidden[:1]),
            "tanh",
        )
        last = ops.linear(
            weights.take("classifier.weight", (card.num_labels, card.hidden_size)),
            weights.take("classifier.bias", (card.num_labels,)),
        )
        heads["score"] = heads["classify"] = ClassifierHead(first, last)
    else:
        weights.skip("pooler.*")
        heads["embed"] = EmbedHead(card, ops)
    return Model(encoder, heads)
