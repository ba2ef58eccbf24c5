"""What every tokenizer implementation offers: text in, bare token ids out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from hedgerow_shared.ragged import TokenIds


class Encoder(Protocol):
    """Splits text into the ids of one vocabulary; adds nothing and cuts nothing.

    Special tokens, truncation, pairs and prompts are laid on top by `Tokenizer`, in the same
    way for every encoder. User text never yields a control token (see `file.disarm`).

    An encoder may also have `head(text, budget) -> (ids, whole) | None`: the first budget + 1
    ids of a long text, or all of them, without reading the rest (see `prefix.prefix_ids`).
    """

    @property
    def name(self) -> str:
        """Short name for logs and metrics, such as `hf` or `unigram`."""
        ...

    def encode(self, texts: Sequence[str]) -> tuple[TokenIds, TokenIds]:
        """Return (ids int32 [num_tokens], cu_seqlens int32 [len(texts) + 1]).

        Callable from any thread, several at once. A text may give no ids at all.
        """
        ...
