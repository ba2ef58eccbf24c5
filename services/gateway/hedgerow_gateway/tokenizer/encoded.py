"""Texts as the model gets them, and what had to be cut to fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from hedgerow_shared.ragged import OutputSpec, RaggedBatch, TokenIds


def _no_ids() -> TokenIds:
    return np.zeros(0, np.int32)


@dataclass(frozen=True, slots=True)
class Encoded:
    """Ragged token ids of n texts, specials included, with a report per text.

    input_ids:  int32 [num_tokens]
    cu_seqlens: int32 [n + 1]
    seen:       int32 [n], tokens the whole text would have taken, specials included; a lower
                bound where `at_least` is set (the rest of a long text was never tokenized),
                and more than `used` there too
    at_least:   bool [n]
    pair_start, prompt_len: as in RaggedBatch; empty when unused
    """

    input_ids: TokenIds
    cu_seqlens: TokenIds
    seen: TokenIds
    at_least: npt.NDArray[np.bool_]
    pair_start: TokenIds = field(default_factory=_no_ids)
    prompt_len: TokenIds = field(default_factory=_no_ids)

    @property
    def num_seqs(self) -> int:
        return int(self.cu_seqlens.shape[0]) - 1

    @property
    def num_tokens(self) -> int:
        return int(self.input_ids.shape[0])

    @property
    def used(self) -> TokenIds:
        """int32 [n]: tokens that go to the model."""
        return self.cu_seqlens[1:] - self.cu_seqlens[:-1]

    @property
    def truncated(self) -> npt.NDArray[np.bool_]:
        """bool [n]: something of the text does not go to the model."""
        return self.seen > self.used

    def batch(self, start: int, stop: int, output: OutputSpec) -> RaggedBatch:
        """Sequences start..stop-1 as a batch of their own (views where possible)."""
        cu = self.cu_seqlens
        if start == 0 and stop == self.num_seqs:
            ids = self.input_ids
        else:
            ids, cu = self.input_ids[cu[start] : cu[stop]], cu[start : stop + 1] - cu[start]
        return RaggedBatch(
            ids,
            cu,
            (output,) * (stop - start),
            self.pair_start[start:stop],
            self.prompt_len[start:stop],
        )


def join(parts: Sequence[Encoded]) -> Encoded:
    """Put slices of one request back together, in order."""
    if len(parts) == 1:
        return parts[0]
    lens = np.concatenate([part.used for part in parts])
    cu_seqlens = np.zeros(lens.shape[0] + 1, np.int32)
    np.cumsum(lens, out=cu_seqlens[1:])
    return Encoded(
        np.concatenate([part.input_ids for part in parts]),
        cu_seqlens,
        np.concatenate([part.seen for part in parts]),
        np.concatenate([part.at_least for part in parts]),
        _offsets([part.pair_start for part in parts], parts),
        _offsets([part.prompt_len for part in parts], parts),
    )


def _offsets(arrays: Sequence[TokenIds], parts: Sequence[Encoded]) -> TokenIds:
    """Join per-sequence offsets; a part without any has 0 for each of its sequences."""
    if not any(array.size for array in arrays):
        return _no_ids()
    filled = [
        array if array.size else np.zeros(part.num_seqs, np.int32)
        for array, part in zip(arrays, parts, strict=True)
    ]
    return np.concatenate(filled)


def from_ids(sequences: Sequence[Sequence[int]], limit: int) -> Encoded:
    """Token ids the caller made: taken as they are, nothing added, cut at the end to `limit`."""
    lens = np.array([len(s) for s in sequences], np.int32)
    cu_seqlens = np.zeros(lens.shape[0] + 1, np.int32)
    np.cumsum(np.minimum(lens, limit), out=cu_seqlens[1:])
    parts = [np.asarray(s[:limit], np.int32) for s in sequences]
    return Encoded(np.concatenate(parts), cu_seqlens, lens, np.zeros(lens.shape[0], np.bool_))
