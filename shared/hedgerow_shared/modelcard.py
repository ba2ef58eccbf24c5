"""A model folder's JSON files, read once: what gateway and engine must agree on.

Pure JSON: no weights, no tokenizer library. The gateway uses lengths, prompts and dimensions;
the engine uses the raw `config` and the module list. Sources: config.json, modules.json,
1_Pooling/config.json (both schemas), 2_Dense*/config.json, sentence_bert_config.json,
config_sentence_transformers.json.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from hedgerow_shared.errors import StartupError

ModuleKind = Literal["transformer", "pooling", "dense", "normalize", "logit_score"]
PoolingMode = Literal["cls", "max", "mean", "mean_sqrt_len", "weightedmean", "lasttoken"]

_MODULE_KINDS: dict[str, ModuleKind] = {
    "Transformer": "transformer",
    "Pooling": "pooling",
    "Dense": "dense",
    "Normalize": "normalize",
    "LogitScore": "logit_score",
}
_NEEDS_NO_FILES = {"normalize"}
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
_SBERT_FILES = (
    "sentence_bert_config.json",
    "sentence_roberta_config.json",
    "sentence_distilbert_config.json",
    "sentence_camembert_config.json",
    "sentence_albert_config.json",
    "sentence_xlm-roberta_config.json",
    "sentence_xlnet_config.json",
)


@dataclass(frozen=True, slots=True)
class Module:
    """One step of modules.json after reading its own config.json (empty where it has none)."""

    kind: ModuleKind
    folder: Path
    config: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Pooling:
    """How token vectors become one. Several modes are concatenated in this order."""

    modes: tuple[PoolingMode, ...] = ("mean",)
    include_prompt: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """Everything a folder says about its model that is not a weight.

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
    def tokenizer_file(self) -> Path:
        return self.folder / "tokenizer.json"

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
    config = _json(folder / "config.json")
    modules = _modules(folder)
    pooling_module = next((m for m in modules if m.kind == "pooling"), None)
    st = _json(folder / "config_sentence_transformers.json", missing={})
    sbert = next((_json(folder / f) for f in _SBERT_FILES if (folder / f).is_file()), {})
    text_config = config.get("text_config", config)
    hidden = _int(text_config, "hidden_size", folder, alternatives=("n_embd", "d_model"))
    labels = _labels(config, modules)
    card = ModelCard(
        folder=folder,
        model_type=str(config.get("model_type", "")),
        architecture=str((config.get("architectures") or [""])[0]),
        config=config,
        modules=modules,
        pooling=_pooling(pooling_module),
        normalize=any(m.kind == "normalize" for m in modules),
        hidden_size=hidden,
        vocab_size=_int(text_config, "vocab_size", folder),
        dimension=_dimension(hidden, modules, labels),
        max_positions=_max_positions(text_config, folder),
        max_seq_len=0,
        num_labels=len(labels),
        labels=labels,
        prompts={k: v for k, v in (st.get("prompts") or {}).items() if isinstance(v, str)},
        default_prompt=st.get("default_prompt_name"),
        do_lower_case=bool(sbert.get("do_lower_case", False)),
        matryoshka=tuple(config.get("matryoshka_dimensions") or ()),
    )
    return replace(card, max_seq_len=_limit(card, sbert.get("max_seq_length"), max_seq_len))


def _limit(card: ModelCard, from_card: int | None, asked: int | None) -> int:
    if asked is not None:
        if not 1 <= asked <= card.max_positions:
            raise StartupError(
                f"--max-seq-len {asked}: {card.folder} allows 1 to {card.max_positions} tokens"
            )
        return asked
    return min(from_card or card.max_positions, card.max_positions)


def _modules(folder: Path) -> tuple[Module, ...]:
    listed = _json(folder / "modules.json", missing=[])
    modules: list[Module] = []
    for entry in listed:
        name = str(entry.get("type", "")).rsplit(".", 1)[-1]
        kind = _MODULE_KINDS.get(name)
        if kind is None:
            raise StartupError(
                f"{folder / 'modules.json'}: module type {entry.get('type')!r} is not supported "
                f"(supported: {', '.join(_MODULE_KINDS)})"
            )
        where = folder / str(entry.get("path", ""))
        if kind == "transformer" or kind in _NEEDS_NO_FILES:
            config = _json(where / "config.json", missing={}) if kind != "transformer" else {}
        else:
            config = _json(where / "config.json")
        modules.append(Module(kind, where, config))
    return tuple(modules)


def _pooling(module: Module | None) -> Pooling:
    if module is None:
        return Pooling()
    config, file = module.config, module.folder / "config.json"
    include_prompt = bool(config.get("include_prompt", True))
    if "pooling_mode" in config:
        names = config["pooling_mode"]
        names = [names] if isinstance(names, str) else list(names)
        unknown = [n for n in names if n not in _POOLING_NAMES]
        modes: tuple[PoolingMode, ...] = tuple(
            _POOLING_NAMES[n] for n in names if n in _POOLING_NAMES
        )
    else:
        on = [k for k, v in config.items() if k.startswith("pooling_mode_") and v]
        unknown = [k for k in on if k not in _LEGACY_POOLING]
        modes = tuple(mode for key, mode in _LEGACY_POOLING.items() if key in on)
    if unknown or not modes:
        raise StartupError(f"{file}: pooling {unknown or 'none'} is not supported")
    return Pooling(modes, include_prompt)


def _dimension(hidden: int, modules: tuple[Module, ...], labels: tuple[str, ...]) -> int:
    if labels:
        return 0
    width = hidden
    for module in modules:
        if module.kind == "pooling":
            width = hidden * len(_pooling(module).modes)
        if module.kind == "dense":
            width = _int(module.config, "out_features", module.folder)
    return width


def _labels(config: Mapping[str, Any], modules: tuple[Module, ...]) -> tuple[str, ...]:
    architecture = str((config.get("architectures") or [""])[0])
    if any(m.kind == "logit_score" for m in modules):
        return ("yes",)
    if not architecture.endswith("ForSequenceClassification"):
        return ()
    id2label = config.get("id2label")
    if isinstance(id2label, dict) and id2label:
        return tuple(str(id2label[k]) for k in sorted(id2label, key=int))
    return tuple(f"LABEL_{i}" for i in range(int(config.get("num_labels", 2))))


def _max_positions(config: Mapping[str, Any], folder: Path) -> int:
    for key in ("max_position_embeddings", "max_trained_positions", "n_positions"):
        if key in config:
            positions = _int(config, key, folder)
            # RoBERTa counts positions from pad_token_id + 1, so that many rows are never used.
            if config.get("model_type") in ("roberta", "xlm-roberta", "camembert", "mpnet"):
                positions -= int(config.get("pad_token_id", 1)) + 1
            return positions
    raise StartupError(f"{folder / 'config.json'}: no max_position_embeddings")


def _int(
    config: Mapping[str, Any], key: str, folder: Path, *, alternatives: tuple[str, ...] = ()
) -> int:
    for name in (key, *alternatives):
        value = config.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    raise StartupError(f"{folder / 'config.json'}: {key} must be a positive whole number")


def _json(file: Path, *, missing: Any = None) -> Any:
    try:
        return json.loads(file.read_text("utf-8"))
    except FileNotFoundError:
        if missing is not None:
            return missing
        raise StartupError(f"{file}: missing; is this a Hugging Face model folder?") from None
    except (ValueError, OSError) as error:
        raise StartupError(f"{file}: not readable as JSON ({error})") from None
