"""Which tasks a folder offers: its modules and its own head decide."""

from __future__ import annotations

import json
from collections.abc import Sequence

import torch
from torch import Tensor

from hedgerow_engine.layers.ops import Linear, Norm, Ops, for_heads
from hedgerow_engine.models.base import Head, ModelInputs
from hedgerow_engine.models.config import Config
from hedgerow_engine.models.heads import EmbedHead, Step, TokenHead, label_step, module_steps
from hedgerow_engine.offers import is_late_interaction, is_sparse, m3_heads
from hedgerow_engine.pooling import pool
from hedgerow_engine.weights import Weights
from hedgerow_shared.errors import StartupError
from hedgerow_shared.modelcard import ModelCard
from hedgerow_shared.ragged import Task


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
        return {"multivector": TokenHead(module_steps(card, ops))}
    heads: dict[Task, Head] = {"embed": EmbedHead(card, ops)}
    return heads | _m3_heads(card, ops)


class SpladeHead:
    """Masked-language-model logits, max over tokens, log(1 + relu): a weight per vocabulary id.

    The maximum is taken first: the two functions after it never change an order.
    """

    def __init__(self, card: ModelCard, weights: Weights, ops: Ops) -> None:
        module = next(m for m in card.modules if m.kind == "splade")
        if module.config.get("pooling_strategy", "max") != "max":
            raise StartupError(f"{module.folder / 'config.json'}: pooling_strategy must be 'max'")
        self._twice = module.config.get("activation_function") == "log1p_relu"
        self._ops = for_heads(ops)
        self._dense, self._norm, self._decoder = _mlm(card, weights, self._ops)

    def __call__(self, hidden_states: Tensor, inputs: ModelInputs) -> dict[str, Tensor]:
        rows = self._ops.norm(self._norm, self._dense(hidden_states))
        best = pool(self._decoder(rows), inputs.pooler, "max", inputs.slots)
        best = torch.log1p(torch.relu(best))
        return {"sparse_rows": torch.log1p(best) if self._twice else best}


def _mlm(card: ModelCard, weights: Weights, ops: Ops) -> tuple[Linear, Norm, Linear]:
    """(transform, norm, decoder) of a masked-language-model head; the decoder may be tied."""
    names = next((n for n in _MLM_NAMES if weights.has(f"{n[0]}.weight")), None)
    if names is None:
        raise StartupError(f"{card.folder}: SpladePooling needs a masked-language-model head")
    dense, norm, decoder, bias = names
    hidden, vocab = card.hidden_size, card.vocab_size
    config = Config(card)
    transform = ops.linear(
        weights.take(f"{dense}.weight", (hidden, hidden)),
        weights.take(f"{dense}.bias", (hidden,)),
        config.mlp_activation(),
    )
    layer_norm = ops.layer_norm(
        weights.take(f"{norm}.weight", (hidden,)),
        weights.take(f"{norm}.bias", (hidden,)),
        config.number("layer_norm_eps", zero=True),
    )
    tied = "embeddings.word_embeddings.weight"
    own = f"{decoder}.weight" if weights.has(f"{decoder}.weight") else tied
    shift = weights.optional(bias, (vocab,))
    weights.skip(f"{decoder}.bias", bias)
    return transform, layer_norm, ops.linear(weights.take(own, (vocab, hidden)), shift)


_MLM_NAMES = (
    (
        "cls.predictions.transform.dense",
        "cls.predictions.transform.LayerNorm",
        "cls.predictions.decoder",
        "cls.predictions.bias",
    ),
    ("lm_head.dense", "lm_head.layer_norm", "lm_head.decoder", "lm_head.bias"),
    ("vocab_transform", "vocab_layer_norm", "vocab_projector", "vocab_projector.bias"),
)


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
        file = Weights.open_linear(card.folder / name)
        width = file.take("linear.weight").shape[0]
        step = label_step(file, ops, "linear", (width, hidden), bias=file.has("linear.bias"))
        if name.startswith("sparse"):
            heads["sparse"] = TokenWeightHead(step, _special_ids(card))
        else:
            heads["multivector"] = TokenHead([step])
    return heads


def _special_ids(card: ModelCard) -> list[int]:
    """Ids whose sparse weight never counts: begin, end, padding, unknown."""
    keys = ("bos_token_id", "eos_token_id", "pad_token_id", "cls_token_id", "sep_token_id")
    found: list[object] = []
    for key in keys:
        value = card.config.get(key)
        found += value if isinstance(value, list) else [value]
    if card.tokenizer_file.is_file():
        model = json.loads(card.tokenizer_file.read_text("utf-8")).get("model", {})
        vocab = model.get("vocab")
        unknown = model.get("unk_id")
        if unknown is None and isinstance(vocab, dict):
            unknown = vocab.get(model.get("unk_token"))
        found.append(unknown)
    return [i for i in found if isinstance(i, int)]
