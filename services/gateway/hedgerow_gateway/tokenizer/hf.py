"""The Hugging Face `tokenizers` library as an encoder: serves every file, and is the oracle."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

import numpy as np
from tokenizers import Tokenizer as HfTokenizer

from hedgerow_gateway.giveway import give_way
from hedgerow_gateway.tokenizer.file import TokenizerFile
from hedgerow_shared.errors import StartupError
from hedgerow_shared.ragged import TokenIds

_CALL_CHARS = 4096
"""What a call found (a string for each token) is freed in one go with the GIL held: a millisecond
for a hundred texts, and whoever waits for the GIL or the core gets them only between two calls."""


class HfEncoder:
    """Encodes with the library's batch call, which drops the GIL while it works."""

    name = "hf"

    def __init__(self, file: TokenizerFile) -> None:
        """Raises StartupError with the library's own reason when it cannot read the file."""
        try:
            self.library = HfTokenizer.from_str(file.text())
        except Exception as error:  # noqa: BLE001 - the library raises bare Exception
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise StartupError(f"{file.path}: the tokenizers library says {reason}") from None
        self.library.encode_special_tokens = True

    def encode(self, texts: Sequence[str]) -> tuple[TokenIds, TokenIds]:
        lists: list[list[int]] = []
        for some in _calls(texts):
            if lists:
                give_way()
            found = self.library.encode_batch_fast(some, add_special_tokens=False)
            lists += [encoding.ids for encoding in found]
        if len(lists) == 1:
            ids = np.array(lists[0], np.int32)
            return ids, np.array((0, ids.shape[0]), np.int32)
        cu_seqlens = np.zeros(len(lists) + 1, np.int32)
        np.cumsum([len(ids) for ids in lists], out=cu_seqlens[1:])
        flat = np.fromiter(chain.from_iterable(lists), np.int32, int(cu_seqlens[-1]))
        return flat, cu_seqlens


def _calls(texts: Sequence[str]) -> Iterator[list[str]]:
    """Runs of texts of about `_CALL_CHARS`; a longer text goes alone."""
    some: list[str] = []
    size = 0
    for text in texts:
        if some and size + len(text) > _CALL_CHARS:
            yield some
            some, size = [], 0
        some.append(text)
        size += len(text)
    yield some
