"""Which tasks a folder offers: its modules and its own head decide."""

from __future__ import annotations

import json
from collections.abc import Sequence

import torch
from torch import Tensor

from hedgerow_engine.layers.ops import Ops
from hedgerow_engine.models.base import Head, ModelInputs
from hedgerow_engine.models.config import refusal
from hedgerow_engine.models.heads import EmbedHead, Step, TokenHead, label_step, module_steps
from hedgerow_engine.models.splade import SpladeHead
from hedgerow_engine.offers import is_late_interaction, is_sparse, m3_heads
from hedgerow_engine.weights import Weights
from hedgerow_shared.modelcard import ModelCard
from hedgerow_shared.ragged import Task

_IDS = 1 << 31


def row_heads(card: ModelCard, weights: Weights, ops: Ops, scorer: Head | None) -> dict[Task, Head]:
    """The heads of a folder. `scorer` is the family's own classifier, or None.

    SPLADE folders give sparse rows, late-interaction folders token vectors, all others an
    embedding; a folder with `sparse_linear` and `colbert_linear` beside (BGE-M3) gives all.
    """
    if scorer is not None:
        return {"score": scorer, "classify": scorer}
    if is_sparse(card):
        return {"sparse": SpladeHead(card, weights, ops)}
    weights.skip("cls.*", "lm_head.*", "vocab_transform.*", "vocab_layer_norm.*")
    weights.skip("vocab_projector.*")
    if is_late_interaction(card):
        steps = module_steps(card, ops)
        return {"multivector": TokenHead(steps, normalize=card.normalize)}
    heads: dict[Task, Head] = {"embed": EmbedHead(card, ops)}
    return heads | _m3_heads(card, ops)


class TokenWeightHead:
    """BGE-M3's sparse head: relu(linear) per token; special tokens weigh nothing."""

    def __init__(self, step: Step, special_ids: Sequence[int]) -> None:
        self._step = step
        self._special = torch.tensor(special_ids, dtype=torch.int32)

    def __call__(self, hidden_states: Tensor, inputs: ModelInputs) -> dict[str, Tensor]:
        weights = torch.relu(self._step(hidden_states.float()))[:, 0]
        return {"token_weights": weights * ~torch.isin(inputs.input_ids, self._special)}


def _m3_heads(card: ModelCard, ops: Ops) -> dict[Task, Head]:
    heads: dict[Task, Head] = {}
    hidden = card.hidden_size
    for name in m3_heads(card):
        file = Weights.open_linear(card.trunk / name)
        # The sparse head gives one number for each token, the other a vector.
        width = 1 if name.startswith("sparse") else file.take("linear.weight").shape[0]
        step = label_step(file, ops, "linear", (width, hidden), bias=file.has("linear.bias"))
        if name.startswith("sparse"):
            heads["sparse"] = TokenWeightHead(step, _special_ids(card))
        else:
            heads["multivector"] = TokenHead([step], normalize=True)
    return heads


def _special_ids(card: ModelCard) -> list[int]:
    """Ids whose sparse weight never counts: begin, end, padding, unknown."""
    keys = ("bos_token_id", "eos_token_id", "pad_token_id", "cls_token_id", "sep_token_id")
    found: list[int] = []
    for key in keys:
        value = card.config.get(key)
        ids = [i for i in (value if isinstance(value, list) else [value]) if type(i) is int]
        if any(not -1 <= i < _IDS for i in ids):
            raise refusal(card.trunk / "config.json", key, value, "a token id, below 2**31")
        found += ids
    if card.tokenizer_file.is_file():
        model = json.loads(card.tokenizer_file.read_text("utf-8")).get("model", {})
        vocab = model.get("vocab")
        unknown = model.get("unk_id")
        if unknown is None and isinstance(vocab, dict):
            unknown = vocab.get(model.get("unk_token"))
        found += [unknown] if type(unknown) is int and 0 <= unknown < _IDS else []
    return found
