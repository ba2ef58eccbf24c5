"""Inputs of exact token counts, cut from the standard library's documentation or a corpus.

Every input starts at another place of the text, so that no two requests of a run are equal
and neither coalescing nor a cache can answer for the engine.
"""

from __future__ import annotations

import importlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

TokenIds = npt.NDArray[np.int32]

_DOCUMENTED = (
    *("argparse", "asyncio", "collections", "decimal", "difflib", "email", "functools", "heapq"),
    *("inspect", "itertools", "logging", "pathlib", "pickle", "statistics", "string", "typing"),
    *("subprocess", "threading", "turtle", "unittest", "zipfile"),
)


def standard_text() -> str:
    """Prose about Python that ships with Python: its topic pages, else its docstrings."""
    try:
        topics: dict[str, str] = importlib.import_module("pydoc_data.topics").topics
        return "\n\n".join(topics[name] for name in sorted(topics))
    except ImportError:
        modules = [importlib.import_module(name) for name in _DOCUMENTED]
        members = [vars(m).values() for m in modules]
        docs = {str(v.__doc__) for group in members for v in group if getattr(v, "__doc__", None)}
        return "\n\n".join(sorted(docs))


@dataclass(frozen=True, slots=True)
class Document:
    """One entry of a corpus: what is embedded is the title and the text, stripped."""

    id: str
    text: str


def read_corpus(file: Path) -> list[Document]:
    """`corpus.jsonl` or `queries.jsonl` in Cranfield (BEIR) form, in the order of the file."""
    entries = [json.loads(line) for line in file.read_text("utf-8").splitlines() if line.strip()]
    return [
        Document(str(e["_id"]), f"{e.get('title') or ''} {e.get('text') or ''}".strip())
        for e in entries
    ]


class Pool:
    """Cuts inputs of a wanted length out of one long text, reproducibly.

    tokenizer_file: a tokenizer.json; the special tokens it adds count in every length.
    """

    def __init__(self, tokenizer_file: Path, text: str) -> None:
        from tokenizers import Tokenizer

        self._text = text
        self._tokenizer: Any = Tokenizer.from_file(str(tokenizer_file))
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        self._ids = np.asarray(encoding.ids, np.int32)
        self._offsets = np.asarray(encoding.offsets, np.int64)
        words = np.asarray([-1 if w is None else w for w in encoding.word_ids], np.int64)
        self._word_starts = np.flatnonzero(np.diff(words, prepend=-2) != 0)
        probe = self._tokenizer.encode("a")
        body = probe.special_tokens_mask.index(0)
        last = len(probe.ids) - probe.special_tokens_mask[::-1].index(0)
        self._head = np.asarray(probe.ids[:body], np.int32)
        self._tail = np.asarray(probe.ids[last:], np.int32)

    @property
    def specials(self) -> int:
        return len(self._head) + len(self._tail)

    def encode(self, text: str) -> TokenIds:
        """Token ids of a text, specials included."""
        return np.asarray(self._tokenizer.encode(text).ids, np.int32)

    def ids(self, length: int, count: int, *, seed: int = 0) -> list[TokenIds]:
        """`count` different sequences of exactly `length` token ids, specials included."""
        body = length - self.specials
        starts = self._starts(body, count, seed)
        return [np.concatenate([self._head, self._take(s, body), self._tail]) for s in starts]

    def texts(self, length: int, count: int, *, seed: int = 0) -> list[str]:
        """`count` different texts that tokenize to `length` tokens, or a few fewer at a cut."""
        body = length - self.specials
        found: list[str] = []
        for start in self._starts(body, count * 2, seed):
            text = self._slice(start, body)
            tokens = len(self._tokenizer.encode(text).ids)
            if length - max(2, length // 32) <= tokens <= length:
                found.append(text)
            if len(found) == count:
                return found
        raise ValueError(f"the text is too short for {count} inputs of {length} tokens")

    def _starts(self, body: int, count: int, seed: int) -> list[int]:
        """Word starts that leave room for `body` tokens, no two alike while there are enough."""
        candidates = self._word_starts[self._word_starts < max(1, len(self._ids) - body)]
        rng = np.random.default_rng(seed)
        replace = count > len(candidates)
        return [int(s) for s in rng.choice(candidates, count, replace=replace)]

    def _take(self, start: int, body: int) -> TokenIds:
        return np.take(self._ids, np.arange(start, start + body), mode="wrap")

    def _slice(self, start: int, body: int) -> str:
        end = min(start + body, len(self._offsets)) - 1
        return self._text[self._offsets[start, 0] : self._offsets[end, 1]]
