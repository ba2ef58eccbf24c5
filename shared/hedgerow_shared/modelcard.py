"""A model folder's JSON files, read once: what gateway and engine must agree on.

Pure JSON: no weights, no tokenizer library. The gateway uses lengths, prompts and dimensions;
the engine uses the raw `config` and the module list. Sources: config.json, modules.json,
1_Pooling/config.json (both schemas), 2_Dense*/config.json, sentence_bert_config.json,
config_sentence_transformers.json, and one key of tokenizer_config.json.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from hedgerow_shared.errors import StartupError
from hedgerow_shared.jsonfile import JsonObject
from hedgerow_shared.latesettings import check_late_settings, normalizes
from hedgerow_shared.modules import Module, check_order, check_scorer, read_modules, trunk_of
from hedgerow_shared.original import yes_no_tokens
from hedgerow_shared.textsettings import read_sbert, read_text_settings

PoolingMode = Literal["cls", "max", "mean", "mean_sqrt_len", "weightedmean", "lasttoken"]

_LEGACY_POOLING: dict[str, PoolingMode] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_POOLING_NAMES: dict[str, PoolingMode] = {
    "cls": "cls",
    "max": "max",
    "mean": "mean",
    "mean_sqrt_len_tokens": "mean_sqrt_len",
    "weightedmean": "weightedmean",
    "lasttoken": "lasttoken",
}
# Tables of rotary angles have a row per position; the longest models have 10 million.
_MOST_POSITIONS = 1 << 24
_COUNT_FROM_PADDING = ("roberta", "xlm-roberta", "camembert", "mpnet")
_MOST_LABELS = 1 << 16
_MOST_TYPES = 1 << 16
TOKEN_TYPES: Mapping[str, int] = {
    "bert": 2,
    "roberta": 2,
    "xlm-roberta": 2,
    "camembert": 2,
    "deberta-v2": 0,
    "gte": 1,
    "new": 1,
    "nomic_bert": 2,
}
"""Rows of a family's token type table where config.json does not say; 0 in all other families."""


@dataclass(frozen=True, slots=True)
class Pooling:
    """How token vectors become one. Several modes are concatenated in this order."""

    modes: tuple[PoolingMode, ...] = ("mean",)
    include_prompt: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """Everything a folder says about its model that is not a weight.

    token_types: rows of the token type table; below 2 a pair's second text is not told apart
    max_seq_len: tokens a sequence may have, specials included (`--max-seq-len` overrules)
    max_positions: the longest sequence the weights allow
    dimension: numbers in an embedding after all Dense modules; 0 for a pure scorer
    num_labels: 0 for an embedder; 1 = reranker; more = classifier
    """

    folder: Path
    model_type: str
    architecture: str
    config: Mapping[str, Any]
    modules: tuple[Module, ...]
    pooling: Pooling
    normalize: bool
    hidden_size: int
    vocab_size: int
    token_types: int
    dimension: int
    max_positions: int
    max_seq_len: int
    num_labels: int
    labels: tuple[str, ...]
    prompts: Mapping[str, str]
    default_prompt: str | None
    do_lower_case: bool
    matryoshka: tuple[int, ...]

    @property
    def trunk(self) -> Path:
        """Where config.json, weights and tokenizer lie: the folder, or its Transformer's."""
        return trunk_of(self.folder, self.modules)

    @property
    def tokenizer_file(self) -> Path:
        return self.trunk / "tokenizer.json"

    @property
    def is_scorer(self) -> bool:
        """True when the model has a head of its own that scores pairs or classifies."""
        return self.num_labels > 0

    def gateway_fingerprint(self) -> str:
        """Hash of what decides token ids: tokenizer, prompts, lengths. 12 hex digits."""
        digest = hashlib.sha256(self.tokenizer_file.read_bytes())
        rest = [dict(self.prompts), self.default_prompt, self.max_seq_len, self.do_lower_case]
        digest.update(json.dumps(rest, sort_keys=True).encode())
        return digest.hexdigest()[:12]


def read_card(folder: Path, *, max_seq_len: int | None = None) -> ModelCard:
    """Read a model folder. Raises StartupError naming the file and the key that is wrong."""
    modules = read_modules(folder)
    check_order(folder, modules)
    trunk = trunk_of(folder, modules)
    config = JsonObject.read(trunk / "config.json")
    st = JsonObject.read(folder / "config_sentence_transformers.json", optional=True)
    sbert = read_sbert(trunk, beside_modules=bool(modules))
    texts = read_text_settings(st, sbert)
    modules = modules or _original_modules(folder, config)
    text_config = config.section("text_config")
    hidden = text_config.whole("hidden_size", "n_embd", "d_model", "dim")
    architecture = (*config.texts("architectures"), "")[0]
    labels = _labels(config, architecture, modules)
    check_scorer(folder, modules, scores=bool(labels))
    card = ModelCard(
        folder=folder,
        model_type=config.maybe_text("model_type") or "",
        architecture=architecture,
        config=config.values,
        modules=modules,
        pooling=_pooling(next((m for m in modules if m.kind == "pooling"), None)),
        normalize=normalizes(modules, st),
        hidden_size=hidden,
        vocab_size=text_config.whole("vocab_size"),
        token_types=_token_types(text_config, config.maybe_text("model_type") or ""),
        dimension=_dimension(hidden, modules, labels),
        max_positions=_max_positions(text_config),
        max_seq_len=0,
        num_labels=len(labels),
        labels=labels,
        prompts=texts.prompts,
        default_prompt=texts.default_prompt,
        do_lower_case=texts.do_lower_case,
        matryoshka=config.wholes("matryoshka_dimensions"),
    )
    card = replace(card, max_seq_len=_limit(card, texts.longest, max_seq_len))
    check_late_settings(modules, st, sbert, card.max_seq_len)
    return card


def _limit(card: ModelCard, from_card: int | None, asked: int | None) -> int:
    if asked is not None:
        if not 1 <= asked <= card.max_positions:
            raise StartupError(
                f"--max-seq-len {asked}: {card.folder} allows 1 to {card.max_positions} tokens"
            )
        return asked
    return min(from_card or card.max_positions, card.max_positions)


def _original_modules(folder: Path, config: JsonObject) -> tuple[Module, ...]:
    """What a folder without modules.json says elsewhere; see hedgerow_shared.original."""
    tokens = yes_no_tokens(folder, config)
    if tokens is None:
        return ()
    return (Module("transformer", folder, {}), Module("logit_score", folder, tokens))


def _pooling(module: Module | None) -> Pooling:
    if module is None:
        return Pooling()
    config = module.json
    include_prompt = config.flag("include_prompt", True)
    if "pooling_mode" in config.values:
        names = config.texts("pooling_mode")
        unknown = [n for n in names if n not in _POOLING_NAMES]
        modes: tuple[PoolingMode, ...] = tuple(
            _POOLING_NAMES[n] for n in names if n in _POOLING_NAMES
        )
    else:
        on = [k for k, v in config.values.items() if k.startswith("pooling_mode_") and v]
        unknown = [k for k in on if k not in _LEGACY_POOLING]
        modes = tuple(mode for key, mode in _LEGACY_POOLING.items() if key in on)
    if unknown or not modes:
        raise StartupError(f"{config.file}: pooling {unknown or 'none'} is not supported")
    return Pooling(modes, include_prompt)


def _dimension(hidden: int, modules: tuple[Module, ...], labels: tuple[str, ...]) -> int:
    """The width after all modules; each Dense must take what the one before it gives."""
    width = hidden
    for module in modules:
        if module.kind == "pooling":
            width = hidden * len(_pooling(module).modes)
        if module.kind == "dense":
            if module.json.whole("in_features") != width:
                raise module.json.wrong("in_features", f"{width}, what comes from before it")
            width = module.json.whole("out_features")
    return 0 if labels else width


def _labels(config: JsonObject, architecture: str, modules: tuple[Module, ...]) -> tuple[str, ...]:
    if any(m.kind == "logit_score" for m in modules):
        return ("yes",)
    # A Pooling says that the model embeds, whatever class its weights were saved from.
    pooled = any(m.kind == "pooling" for m in modules)
    if pooled or not architecture.endswith("ForSequenceClassification"):
        return ()
    id2label = config.mapping("id2label")
    if any(not key.isdecimal() or len(key) > 9 for key in id2label):
        raise config.wrong("id2label", "an object with numbers as keys")
    if id2label:
        return tuple(str(id2label[k]) for k in sorted(id2label, key=int))
    count = config.maybe_whole("num_labels") or 2
    if count > _MOST_LABELS:
        raise config.wrong("num_labels", f"at most {_MOST_LABELS}")
    return tuple(f"LABEL_{i}" for i in range(count))


def _token_types(config: JsonObject, model_type: str) -> int:
    # MPNet and DistilBERT have no such table, whatever the key says.
    if model_type in ("mpnet", "distilbert"):
        return 0
    rows = config.values.get("type_vocab_size")
    if rows is None:
        return TOKEN_TYPES.get(model_type, 0)
    if type(rows) is not int or not 0 <= rows <= _MOST_TYPES:
        raise config.wrong("type_vocab_size", f"a whole number from 0 up, at most {_MOST_TYPES}")
    return rows


def _max_positions(config: JsonObject) -> int:
    keys = ("max_position_embeddings", "max_trained_positions", "n_positions")
    key = next((k for k in keys if k in config.values), None)
    if key is None:
        raise StartupError(f"{config.file}: no max_position_embeddings")
    positions, padding = config.whole(key), config.maybe_integer("pad_token_id")
    if positions > _MOST_POSITIONS:
        raise config.wrong(key, f"at most {_MOST_POSITIONS}")
    model_type = config.values.get("model_type")
    if model_type not in _COUNT_FROM_PADDING:
        return positions
    # RoBERTa counts positions from pad_token_id + 1, so that many rows are never used. MPNet's
    # own code has a 1 there, whatever the key says.
    padding = 1 if padding is None or model_type == "mpnet" else padding
    if not 0 <= padding <= positions - 2:
        raise config.wrong("pad_token_id", f"from 0 to {positions - 2}, as positions follow it")
    return positions - padding - 1
