"""SPLADE: the logits of a masked-language-model head, pooled to a weight per vocabulary id."""

from __future__ import annotations

import torch
from torch import Tensor

from hedgerow_engine.layers.ops import Activation, Linear, Norm, Ops, for_heads
from hedgerow_engine.models.base import ModelInputs
from hedgerow_engine.models.config import Config, refusal
from hedgerow_engine.pooling import pool
from hedgerow_engine.weights import Weights
from hedgerow_shared.errors import StartupError
from hedgerow_shared.modelcard import ModelCard

# (transform, norm, decoder, its bias under its older name)
_BERT = (
    "cls.predictions.transform.dense",
    "cls.predictions.transform.LayerNorm",
    "cls.predictions.decoder",
    "cls.predictions.bias",
)
_ROBERTA = ("lm_head.dense", "lm_head.layer_norm", "lm_head.decoder", "lm_head.bias")
_GTE = ("lm_head.dense", "lm_head.norm", "lm_head.decoder", "lm_head.bias")
_DISTILBERT = ("vocab_transform", "vocab_layer_norm", "vocab_projector", "vocab_projector.bias")


class SpladeHead:
    """Masked-language-model logits, max over tokens, log(1 + relu): a weight per vocabulary id.

    The maximum is taken first: the two functions after it never change an order.
    """

    def __init__(self, card: ModelCard, weights: Weights, ops: Ops) -> None:
        self._twice = _is_twice(card)
        self._ops = for_heads(ops)
        self._dense, self._norm, self._decoder = _mlm(card, weights, self._ops)

    def __call__(self, hidden_states: Tensor, inputs: ModelInputs) -> dict[str, Tensor]:
        rows = self._ops.norm(self._norm, self._dense(hidden_states))
        best = pool(self._decoder(rows), inputs.pooler, "max", inputs.slots)
        best = torch.log1p(torch.relu(best))
        return {"sparse_rows": torch.log1p(best) if self._twice else best}


def _is_twice(card: ModelCard) -> bool:
    """True where the logarithm is taken twice."""
    module = next(m for m in card.modules if m.kind == "splade")
    strategy = module.config.get("pooling_strategy", "max")
    if strategy != "max":
        raise refusal(module.json.file, "pooling_strategy", strategy, "'max'")
    function = module.config.get("activation_function", "relu")
    if function not in ("relu", "log1p_relu"):
        raise refusal(module.json.file, "activation_function", function, "relu or log1p_relu")
    return function == "log1p_relu"


def _mlm(card: ModelCard, weights: Weights, ops: Ops) -> tuple[Linear, Norm, Linear]:
    """(transform, norm, decoder) of a masked-language-model head."""
    heads = (_BERT, _ROBERTA, _GTE, _DISTILBERT)
    names = next((n for n in heads if weights.has(f"{n[1]}.weight")), None)
    if names is None:
        raise StartupError(f"{card.folder}: SpladePooling needs a masked-language-model head")
    dense, norm, decoder, old_bias = names
    hidden, config = card.hidden_size, Config(card)
    # RoBERTa's kind of head has a GELU in its code, whatever the layers have.
    fixed = names in (_ROBERTA, _GTE)
    activation: Activation = "gelu" if fixed else config.mlp_activation()
    transform = ops.linear(
        weights.take(f"{dense}.weight", (hidden, hidden)),
        weights.take(f"{dense}.bias", (hidden,)),
        activation,
    )
    layer_norm = ops.layer_norm(
        weights.take(f"{norm}.weight", (hidden,)),
        weights.take(f"{norm}.bias", (hidden,)),
        config.number("layer_norm_eps", zero=True),
    )
    return transform, layer_norm, _decoder(card, weights, ops, decoder, old_bias)


def _decoder(card: ModelCard, weights: Weights, ops: Ops, name: str, old_bias: str) -> Linear:
    """The embedding table where the config ties it. Of two biases the decoder's own counts, as in
    transformers; a file whose two are tied has one, under either name."""
    tied = Config(card).flag("tie_word_embeddings")
    own = weights.has(f"{name}.weight") or not tied
    matrix = f"{name}.weight" if own else "embeddings.word_embeddings.weight"
    bias = f"{name}.bias" if weights.has(f"{name}.bias") else old_bias
    weights.skip(old_bias)
    vocab = card.vocab_size
    return ops.linear(weights.take(matrix, (vocab, card.hidden_size)), weights.take(bias, (vocab,)))
