"""tokenizer.json, read once: checked, its truncation and padding reset, control tokens disarmed."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from hedgerow_shared.errors import StartupError
from hedgerow_shared.modelcard import ModelCard

_MODEL_TYPES = ("WordPiece", "Unigram", "BPE", "WordLevel")


@dataclass(frozen=True, slots=True)
class TokenizerFile:
    """A tokenizer.json ready to be built from.

    spec: the parsed file after `reset` and `disarm`
    control_ids: ids of the tokens the file marks as special
    digest: sha256 of the file as it lies on disk, in hex
    """

    path: Path
    spec: dict[str, Any]
    control_ids: frozenset[int]
    digest: str

    @property
    def model_type(self) -> str:
        return str(self.spec["model"]["type"])

    def text(self) -> str:
        """The spec as JSON text, as the `tokenizers` library reads it."""
        return orjson.dumps(self.spec).decode()


def read_file(card: ModelCard) -> TokenizerFile:
    """Read a model's tokenizer.json. Raises StartupError naming the file and the field."""
    path = card.tokenizer_file
    spec, digest = _read(path)
    _check(spec, path)
    reset(spec)
    if card.do_lower_case:
        lower_case(spec)
    control_ids = disarm(spec)
    return TokenizerFile(path, spec, control_ids, digest)


def reset(spec: dict[str, Any]) -> None:
    """Drop truncation and padding: some files carry them (MiniLM's cuts at 128), the card rules."""
    spec["truncation"] = None
    spec["padding"] = None


def lower_case(spec: dict[str, Any]) -> None:
    """Lower-case before everything else, as sentence_bert_config's `do_lower_case` asks."""
    normalizer = spec.get("normalizer")
    rest: list[Any] = []
    if normalizer is not None:
        rest = normalizer["normalizers"] if normalizer.get("type") == "Sequence" else [normalizer]
    spec["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "Lowercase"}, *rest]}


def disarm(spec: dict[str, Any]) -> frozenset[int]:
    """Give every control token a name no text can spell; return the ids of those tokens.

    "</s>" in a user's text is text, not an end of sequence. Not looking for special tokens is
    not enough: a Unigram vocabulary also *contains* the piece "</s>", and full-width forms
    normalise to it. A name with 128 random bits keeps every id in its place and out of reach.
    """
    secret = secrets.token_hex(16)
    renamed: dict[str, str] = {}
    for token in spec.get("added_tokens") or []:
        if token.get("special"):
            renamed[token["content"]] = f"\ufdd0{secret}-{token['id']}"
            token["content"] = renamed[token["content"]]
    model = spec["model"]
    vocab = model["vocab"]
    if isinstance(vocab, dict):
        model["vocab"] = {renamed.get(piece, piece): i for piece, i in vocab.items()}
    else:
        for entry in vocab:
            entry[0] = renamed.get(entry[0], entry[0])
    if model.get("unk_token") in renamed:
        model["unk_token"] = renamed[model["unk_token"]]
    return frozenset(t["id"] for t in spec.get("added_tokens") or [] if t.get("special"))


def _read(path: Path) -> tuple[Any, str]:
    try:
        raw = path.read_bytes()
        return orjson.loads(raw), hashlib.sha256(raw).hexdigest()
    except FileNotFoundError:
        raise StartupError(
            f"{path}: missing; Hedgerow needs the fast tokenizer file "
            "(save the model again with a tokenizer.json)"
        ) from None
    except (OSError, ValueError) as error:
        raise StartupError(f"{path}: not readable as JSON ({error})") from None


def _check(spec: Any, path: Path) -> None:
    model = spec.get("model") if isinstance(spec, dict) else None
    if not isinstance(model, dict):
        raise StartupError(f"{path}: no field 'model'; is this a Hugging Face tokenizer.json?")
    kind = model.get("type")
    if kind not in _MODEL_TYPES:
        raise StartupError(
            f"{path}: model.type is {kind!r}; supported are {', '.join(_MODEL_TYPES)}"
        )
    if not isinstance(model.get("vocab"), dict | list) or not model["vocab"]:
        raise StartupError(f"{path}: model.vocab is missing or empty")
