"""A reranker that answers yes or no: how much likelier one token is than another, which is the
difference of their rows in the output matrix. For every executor; no torch here."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hedgerow_engine.models.config import Config, refusal
from hedgerow_engine.weightfile import RawTensor
from hedgerow_engine.weights import Weights
from hedgerow_shared.modelcard import ModelCard


def score_rows(card: ModelCard, weights: Weights) -> RawTensor | None:
    """F32 [1, hidden]; None for a model with a classifier instead of a LogitScore module."""
    module = next((m for m in card.modules if m.kind == "logit_score"), None)
    if module is None:
        return None
    tied = Config(card).flag("tie_word_embeddings")
    own = weights.has("lm_head.weight") or not tied
    name = "lm_head.weight" if own else "embed_tokens.weight"
    logits = weights.take(name, (card.vocab_size, card.hidden_size))
    file = module.folder / "config.json"

    def row(key: str) -> npt.NDArray[np.float32]:
        token = module.config.get(key)
        if type(token) is not int or not 0 <= token < card.vocab_size:
            raise refusal(file, key, token, "a token id of this model")
        return RawTensor(name, logits.dtype, logits.data[token : token + 1], logits.file).float32()

    score = row("true_token_id")
    if module.config.get("false_token_id") is not None:
        score = score - row("false_token_id")
    return RawTensor(name, "F32", np.ascontiguousarray(score), logits.file)
