"""A batch cut into passes, and the rows of the answer each pass writes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hedgerow_engine.native.words import POOL
from hedgerow_shared.ragged import RaggedBatch


@dataclass(frozen=True, slots=True)
class Cut:
    """Sequences [first, last) of a batch, their tokens and their rows of the answer."""

    first: int
    last: int
    num_tokens: int
    longest: int
    first_row: int
    num_rows: int


def cut_batch(batch: RaggedBatch, budget: int) -> list[Cut]:
    """As few consecutive passes as fit `budget` tokens each; a longer sequence goes alone.

    Where a batch is cut does not change any row's bytes, only how long one pass takes.
    """
    cu = batch.cu_seqlens
    rows = row_counts(batch)
    if batch.num_tokens <= budget:
        longest = batch.longest
        num_rows = batch.num_seqs if rows is None else int(rows.sum())
        return [Cut(0, batch.num_seqs, batch.num_tokens, longest, 0, num_rows)]
    cuts: list[Cut] = []
    first, first_row = 0, 0
    while first < batch.num_seqs:
        fits = int(np.searchsorted(cu, int(cu[first]) + budget, "right")) - 1
        last = max(first + 1, fits)
        num_rows = last - first if rows is None else int(rows[first:last].sum())
        longest = int(np.diff(cu[first : last + 1]).max())
        num_tokens = int(cu[last] - cu[first])
        cuts.append(Cut(first, last, num_tokens, longest, first_row, num_rows))
        first, first_row = last, first_row + num_rows
    return cuts


def row_counts(batch: RaggedBatch) -> npt.NDArray[np.int64] | None:
    """Rows of the answer per sequence: its spans, or one. None = one each."""
    if not batch.spans.shape[0]:
        return None
    counts = np.bincount(batch.spans[:, 0], minlength=batch.num_seqs)
    return np.maximum(counts, 1).astype(np.int64)


def pool_table(batch: RaggedBatch, cut: Cut, *, skip_prompts: bool) -> npt.NDArray[np.int64] | None:
    """POOL words of a cut's rows; None = every row is a whole sequence.

    skip_prompts: rows begin after their `prompt_len` leading tokens, "cls" too.
    """
    prompts = skip_prompts and batch.prompt_len.size > 0
    if not batch.spans.shape[0] and not prompts:
        return None
    cu = batch.cu_seqlens.astype(np.int64) - int(batch.cu_seqlens[cut.first])
    owners = np.arange(cut.first, cut.last)
    starts = np.zeros(owners.shape[0], np.int64)
    if prompts:
        starts += batch.prompt_len[cut.first : cut.last]
    ends = np.diff(cu[cut.first : cut.last + 1])
    table = [(s, int(a), int(b)) for s, a, b in zip(owners.tolist(), starts, ends)]
    if batch.spans.shape[0]:
        table = _with_spans(batch, table)
    return _words(cu, table)


Entry = tuple[int, int, int]
"""(sequence, begin, end), offsets inside the sequence."""


def _with_spans(batch: RaggedBatch, whole: list[Entry]) -> list[Entry]:
    """Each sequence's spans instead of its whole."""
    spans: dict[int, list[Entry]] = {}
    for owner, begin, end in batch.spans.tolist():
        spans.setdefault(owner, []).append((owner, begin, end))
    return [entry for one in whole for entry in spans.get(one[0], [one])]


def _words(cu: npt.NDArray[np.int64], table: list[Entry]) -> npt.NDArray[np.int64]:
    words = POOL.new(len(table))
    for row, (owner, begin, end) in zip(words, table, strict=True):
        base = int(cu[owner])
        POOL.put(row, begin=base + begin, end=base + end, offset=begin)
    return words
