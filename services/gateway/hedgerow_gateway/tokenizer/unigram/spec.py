"""What of a tokenizer.json the unigram encoder understands; all else is left to the library."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hedgerow_gateway.tokenizer.unigram.layout import Pipeline

_COLLAPSE = {"Regex": " {2,}"}
_MARK = "\u2581"


class NotSupportedError(Exception):
    """The library serves this file. The text names the field and what was found there."""


@dataclass(frozen=True, slots=True)
class UnigramSpec:
    """The parts that decide ids.

    pieces:  the vocabulary by id
    scores:  as the `tokenizers` library holds them, see `tables.library_scores`
    control_ids: ids that text never yields
    """

    pieces: Sequence[str]
    unk_id: int
    control_ids: frozenset[int]
    charsmap: bytes
    pipeline: Pipeline


def read_spec(spec: Mapping[str, Any], control_ids: frozenset[int]) -> UnigramSpec:
    """Check every field against what is known to be encoded exactly.

    Raises NotSupportedError naming the first field that is not.
    """
    model = spec["model"]
    if model.get("type") != "Unigram":
        raise NotSupportedError(f"model.type is {model.get('type')!r}")
    if model.get("byte_fallback"):
        raise NotSupportedError("model.byte_fallback is on")
    unk = model.get("unk_id")
    if not isinstance(unk, int) or unk not in control_ids:
        raise NotSupportedError(f"model.unk_id is {unk!r}, which is no special token")
    for token in spec.get("added_tokens") or []:
        if not token.get("special"):
            raise NotSupportedError(f"added_tokens holds {token.get('content')!r}, not special")
    charsmap, normalizer = _normalizer(spec.get("normalizer"))
    pipeline = _pipeline(normalizer, spec.get("pre_tokenizer"))
    pieces = [entry[0] for entry in model["vocab"]]
    return UnigramSpec(pieces, unk, control_ids, charsmap, pipeline)


def _normalizer(node: Any) -> tuple[bytes, str]:
    """(charsmap, name of what follows it)."""
    steps = _steps(node, "normalizers")
    if not steps or steps[0].get("type") != "Precompiled":
        raise NotSupportedError("normalizer does not start with Precompiled")
    try:
        charsmap = base64.b64decode(steps[0]["precompiled_charsmap"], validate=True)
    except (KeyError, TypeError, ValueError, binascii.Error):
        raise NotSupportedError("normalizer.precompiled_charsmap is not base64") from None
    rest = steps[1:]
    if not rest:
        return charsmap, "nothing"
    last = rest[-1]
    if last.get("type") == "Replace" and last.get("pattern") == _COLLAPSE:
        if len(rest) == 1 and last.get("content") == " ":
            return charsmap, "collapse"
        right = {"type": "Strip", "strip_left": False, "strip_right": True}
        if len(rest) == 2 and rest[0] == right and last.get("content") == _MARK:
            return charsmap, "strip, collapse"
    raise NotSupportedError(f"normalizer has unknown steps: {[s.get('type') for s in rest]}")


def _pipeline(normalizer: str, node: Any) -> Pipeline:
    steps = _steps(node, "pretokenizers")
    names = [step.get("type") for step in steps]
    if not names or names[-1] != "Metaspace" or names[:-1] not in ([], ["WhitespaceSplit"]):
        raise NotSupportedError(f"pre_tokenizer is {names}")
    last = steps[-1]
    scheme = last.get("prepend_scheme", "always" if last.get("add_prefix_space") else "never")
    if last.get("replacement") != _MARK or scheme != "always" or not last.get("split", True):
        raise NotSupportedError("pre_tokenizer: Metaspace does not split before and after spaces")
    if len(names) == 2 and normalizer in ("nothing", "collapse"):
        return Pipeline.B
    if len(names) == 1 and normalizer == "collapse":
        return Pipeline.A
    if len(names) == 1 and normalizer == "strip, collapse":
        return Pipeline.C
    raise NotSupportedError(f"normalizer with {normalizer} after Precompiled, {names}")


def _steps(node: Any, key: str) -> list[dict[str, Any]]:
    if node is None:
        return []
    return list(node.get(key) or []) if node.get("type") == "Sequence" else [node]
