"""What a folder says about texts: prompts, case, and how many tokens of one are read.

As sentence-transformers reads it: `max_seq_length` of the Transformer's own file, else
`model_max_length` of tokenizer_config.json, which is where version 6 writes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hedgerow_shared.jsonfile import JsonObject

_SBERT_FILES = (
    "sentence_bert_config.json",
    "sentence_roberta_config.json",
    "sentence_distilbert_config.json",
    "sentence_camembert_config.json",
    "sentence_albert_config.json",
    "sentence_xlm-roberta_config.json",
    "sentence_xlnet_config.json",
)
# Names of prompts that sentence-transformers has in every model, empty where a folder gives none.
_ALWAYS_THERE = ("query", "document")


@dataclass(frozen=True, slots=True)
class TextSettings:
    """longest: tokens of a text that are read; None = as many as the weights allow."""

    prompts: Mapping[str, str]
    default_prompt: str | None
    do_lower_case: bool
    longest: int | None


def read_text_settings(st: JsonObject, sbert: JsonObject) -> TextSettings:
    """st: config_sentence_transformers.json; sbert: what `read_sbert` gave. StartupError names
    file and key."""
    prompts = _prompts(st)
    return TextSettings(
        prompts,
        _default_prompt(st, prompts),
        sbert.flag("do_lower_case", False),
        _longest(sbert) or _model_max_length(sbert.file.parent),
    )


def read_sbert(trunk: Path, *, beside_modules: bool) -> JsonObject:
    """The Transformer's own settings, under the newest of its names; empty where it has none, and
    without modules.json, where sentence-transformers does not look for it."""
    name = next((f for f in _SBERT_FILES if (trunk / f).is_file()), _SBERT_FILES[0])
    if not beside_modules:
        return JsonObject(trunk / name, {})
    return JsonObject.read(trunk / name, optional=True)


def _prompts(st: JsonObject) -> dict[str, str]:
    """A prompt that is null is an empty one."""
    prompts: dict[str, str] = {}
    for name, text in st.mapping("prompts").items():
        if text is not None and not isinstance(text, str):
            raise st.wrong("prompts", f"an object of texts ({name!r} is none)")
        prompts[name] = text or ""
    return prompts


def _default_prompt(st: JsonObject, prompts: Mapping[str, str]) -> str | None:
    name = st.maybe_text("default_prompt_name")
    if name is not None and name not in prompts and name not in _ALWAYS_THERE:
        known = ", ".join(sorted({*prompts, *_ALWAYS_THERE}))
        raise st.wrong("default_prompt_name", f"one of the prompts ({known})")
    return name


def _longest(sbert: JsonObject) -> int | None:
    """What the Transformer's file says: of one call, then of the tokenizer, then of its own key."""
    call = sbert.mapping("processing_kwargs")
    common, text = (JsonObject(sbert.file, call).mapping(key) for key in ("common", "text"))
    tokenizer = sbert.mapping("tokenizer_args") | sbert.mapping("processor_kwargs")
    return (
        JsonObject(sbert.file, common | text).maybe_whole("max_length")
        or JsonObject(sbert.file, tokenizer).maybe_whole("model_max_length")
        or sbert.maybe_whole("max_seq_length")
    )


def _model_max_length(trunk: Path) -> int | None:
    """None for a tokenizer without a limit, which writes 10 ** 30 as a float or as an integer."""
    tokenizer = JsonObject.read(trunk / "tokenizer_config.json", optional=True)
    # A null under the newer name hides the older one, as it does in transformers.
    key = "model_max_length" if "model_max_length" in tokenizer.values else "max_len"
    if type(tokenizer.values.get(key)) is not int:
        return None
    return tokenizer.maybe_whole(key)
