"""Exact cheap truncation: read only as much of a long text as the model can use.

Tokenizing all and then cutting makes a 1 MB document cost 1 MB. Where a pipeline treats words
independently, a text may be cut at certain single spaces and the pieces tokenized one by one:
their ids, put together, are those of the whole. The rule below is the strictest of the families
(WordPiece, Unigram split at spaces, GPT-style BPE): one plain space between a visible character
and a letter, no combining or prepending character on either side. There a regular expression
of the GPT kind always starts a new piece, a Metaspace always starts a word, and no normalizer
reaches across (a grapheme cluster never spans it).
"""

from __future__ import annotations

import unicodedata
from typing import Any

import numpy as np

from hedgerow_gateway.tokenizer.encoder import Encoder
from hedgerow_gateway.tokenizer.file import TokenizerFile
from hedgerow_shared.ragged import TokenIds

CHARS_PER_TOKEN = 8
_FIRST_CHARS_PER_TOKEN = 5
_STEP_CHARS = 4096
_LEAST_STEP_CHARS = 256
_SEARCH_CHARS = 2048

# Grapheme_Cluster_Break=Prepend: such a character takes the space after it into its cluster.
_PREPEND = frozenset(
    chr(c)
    for first, last in (
        (0x0600, 0x0605), (0x06DD, 0x06DD), (0x070F, 0x070F), (0x0890, 0x0891), (0x08E2, 0x08E2),
        (0x0D4E, 0x0D4E), (0x110BD, 0x110BD), (0x110CD, 0x110CD), (0x111C2, 0x111C3),
        (0x113D1, 0x113D1), (0x1193F, 0x1193F), (0x11941, 0x11941), (0x11A3A, 0x11A3A),
        (0x11A84, 0x11A89), (0x11D46, 0x11D46), (0x11F02, 0x11F02),
    )
    for c in range(first, last + 1)
)  # fmt: skip

# Regular expressions whose pieces always begin at " " + letter after a visible character.
_SAFE_PATTERNS = (" ?\\p{L}+", "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+")


def cuttable(file: TokenizerFile) -> bool:
    """True when the rule is exact for this tokenizer.json; False when words may interact."""
    spec = file.spec
    if any(not t.get("special") and " " in t.get("content", "") for t in _added(spec)):
        return False
    if any(t.get("rstrip") or t.get("lstrip") for t in _added(spec) if not t.get("special")):
        return False
    steps = _steps(spec.get("pre_tokenizer"), "pretokenizers")
    names = [step.get("type") for step in steps]
    kind = file.model_type
    if not _normalizer_is_local(spec.get("normalizer")):
        return False
    if kind == "WordPiece" and names in (["BertPreTokenizer"], ["Whitespace"]):
        return True
    if kind == "Unigram" and names in (["Metaspace"], ["WhitespaceSplit", "Metaspace"]):
        return bool(steps[-1].get("split", True))
    return kind == "BPE" and "ByteLevel" in names and _splits_at_letters(steps)


def worth_cutting(text: str, budget: int) -> bool:
    """True when a text is so long that reading all of it would be mostly waste."""
    return len(text) > 2 * budget * CHARS_PER_TOKEN + _STEP_CHARS


def prefix_ids(encoder: Encoder, text: str, budget: int) -> tuple[TokenIds, bool]:
    """Return (ids, whole): more than `budget` ids of the text's beginning, or all of them.

    The first `budget` ids are exactly those of the whole text; one more shows that it is cut,
    so a text of which something was not read never looks as if it fitted. An encoder that can
    stop by itself (`head`) is asked to; another one gets pieces of the text, each as long as
    the ids seen so far suggest.
    """
    if not worth_cutting(text, budget):
        return encoder.encode([text])[0], True
    head = getattr(encoder, "head", None)
    found: tuple[TokenIds, bool] | None = None if head is None else head(text, budget)
    if found is not None:
        return found
    parts: list[TokenIds] = []
    count, start, step = 0, 0, budget * _FIRST_CHARS_PER_TOKEN
    while count <= budget and start < len(text):
        stop = safe_cut(text, start, start + step)
        ids = encoder.encode([text[start:stop]])[0]
        parts.append(ids)
        count, start = count + ids.shape[0], stop
        missing = (budget + 1 - count) * start // max(count, 1)
        step = max(_LEAST_STEP_CHARS, missing + missing // 4)
    return np.concatenate(parts), start >= len(text)


def safe_cut(text: str, start: int, near: int) -> int:
    """A position where `text` may be cut: close to `near`, after `start`; else its length.

    Looks back from `near` first, then forward through the rest of the text.
    """
    if near >= len(text):
        return len(text)
    at = text.rfind(" ", max(start + 1, near - _SEARCH_CHARS), near)
    while at > start:
        if _may_cut(text, at):
            return at
        at = text.rfind(" ", max(start + 1, near - _SEARCH_CHARS), at)
    at = text.find(" ", near)
    while at >= 0:
        if _may_cut(text, at):
            return at
        at = text.find(" ", at + 1)
    return len(text)


def _may_cut(text: str, at: int) -> bool:
    if at + 2 >= len(text):
        return False
    before, after, then = text[at - 1], text[at + 1], text[at + 2]
    # Some charsmaps turn symbols into spaces (U+2581, U+FFFD), which would then collapse.
    if not (before.isalnum() or "!" <= before <= "~") or not after.isalpha():
        return False
    if before in _PREPEND or after in _PREPEND:
        return False
    if not unicodedata.normalize("NFKC", after)[0].isalpha():
        return False
    return not any(_is_mark(c) for c in (before, after, then))


def _is_mark(char: str) -> bool:
    return unicodedata.category(char) in ("Mn", "Mc", "Me", "Cf", "Cc", "Cn", "Co")


def _normalizer_is_local(normalizer: Any) -> bool:
    for step in _steps(normalizer, "normalizers"):
        kind = step.get("type")
        if kind == "Replace" and step.get("pattern") in ({"Regex": " {2,}"}, {"String": " "}):
            continue
        # Strip works on the ends only: the cut leaves no space at the end of a piece, and the
        # space before a later piece survives because only the right side may be stripped.
        if kind == "Strip" and not step.get("strip_left"):
            continue
        if kind not in ("BertNormalizer", "Precompiled", "NFC", "NFKC", "NFD", "Lowercase"):
            return False
    return True


def _splits_at_letters(steps: list[dict[str, Any]]) -> bool:
    for step in steps:
        pattern = step.get("pattern", {}).get("Regex", "") if step["type"] == "Split" else ""
        if any(safe in pattern for safe in _SAFE_PATTERNS):
            return True
        if step["type"] == "ByteLevel" and step.get("use_regex", True):
            return not step.get("add_prefix_space", False)
    return False


def _steps(node: Any, key: str) -> list[dict[str, Any]]:
    if node is None:
        return []
    return list(node[key]) if node.get("type") == "Sequence" else [node]


def _added(spec: dict[str, Any]) -> list[dict[str, Any]]:
    return spec.get("added_tokens") or []
