"""A batch laid out for the device: sequences in length order, and where each one's rows are.

Sorting puts sequences of equal length side by side, so that they share one attention call and
one reduction without any padding. Rows of the answer stay in the order of the batch. Pure numpy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hedgerow_shared.ragged import RaggedBatch

Int32s = npt.NDArray[np.int32]

PAD = 0
"""The token that fills up a shape: nobody reads what comes of it, and every vocabulary has it
(a config's own pad_token_id may lie outside)."""


class Group(NamedTuple):
    """Neighbouring sequences of one length: rows [start, start + num_seqs * seqlen)."""

    start: int
    num_seqs: int
    seqlen: int


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the tokens of a batch lie on the device, and what is pooled from where.

    order:  int32 [num_seqs], sequence of the batch at each staged place
    cu_seqlens: int32 [num_seqs + 1], in staged order
    groups: runs of equal length, in staged order
    pool_starts, pool_ends: int32 [num_rows], token range behind each row, in batch order
    pool_offsets: int32 [num_rows], place of that range's first token in its sequence
    whole:  True when each row is a whole sequence, so that groups can be reduced at once
    first, last: int32 [num_seqs], rows of each sequence's first and last token, in batch order
    """

    num_tokens: int
    order: Int32s
    cu_seqlens: Int32s
    groups: tuple[Group, ...]
    pool_starts: Int32s
    pool_ends: Int32s
    pool_offsets: Int32s
    whole: bool
    first: Int32s
    last: Int32s

    @property
    def num_seqs(self) -> int:
        return self.order.shape[0]

    @property
    def num_rows(self) -> int:
        return self.pool_starts.shape[0]


def lay_out(batch: RaggedBatch, *, include_prompt: bool, sort: bool = True) -> Layout:
    """Plan a batch. `include_prompt=False` leaves each sequence's prompt out of its pooling."""
    seqlens, n = batch.seqlens, batch.num_seqs
    order = np.argsort(seqlens, kind="stable") if sort and n > 1 else np.arange(n)
    cu_seqlens = np.zeros(n + 1, np.int32)
    np.cumsum(seqlens[order], out=cu_seqlens[1:])
    first = np.empty(n, np.int32)
    first[order] = cu_seqlens[:-1]
    ends = first + seqlens
    starts, origins, whole = first, first, True
    if batch.prompt_len.size and not include_prompt and np.any(batch.prompt_len):
        starts, whole = first + batch.prompt_len, False
    if batch.spans.shape[0]:
        starts, ends, origins = _spans(batch, first, starts, ends)
        whole = False
    return Layout(
        num_tokens=batch.num_tokens,
        order=order.astype(np.int32),
        cu_seqlens=cu_seqlens,
        groups=_groups(seqlens[order]),
        pool_starts=starts.astype(np.int32),
        pool_ends=ends.astype(np.int32),
        pool_offsets=(starts - origins).astype(np.int32),
        whole=whole,
        first=first,
        last=(first + seqlens - 1).astype(np.int32),
    )


def fill(batch: RaggedBatch, layout: Layout, ids: Int32s, positions: Int32s, types: Int32s) -> None:
    """Write a batch in staged order into static inputs, each int32 [bucket].

    The tail past `num_tokens` becomes harmless tokens at position 0, at every pass: what an
    earlier pass left there must never be read, and no table is too short for position 0.
    """
    tokens = layout.num_tokens
    positions[:tokens] = np.arange(tokens, dtype=np.int32)
    positions[:tokens] -= np.repeat(layout.cu_seqlens[:-1], np.diff(layout.cu_seqlens))
    positions[tokens:] = 0
    if layout.num_seqs == 1:
        ids[:tokens] = batch.input_ids
    else:
        source = np.repeat(batch.cu_seqlens[layout.order], batch.seqlens[layout.order])
        np.take(batch.input_ids, source + positions[:tokens], out=ids[:tokens])
    ids[tokens:] = PAD
    types[:] = 0
    if batch.pair_start.size and np.any(batch.pair_start):
        second = np.repeat(batch.pair_start[layout.order], batch.seqlens[layout.order])
        types[:tokens] = (second > 0) & (positions[:tokens] >= second)


def _spans(
    batch: RaggedBatch, first: Int32s, starts: Int32s, ends: Int32s
) -> tuple[Int32s, Int32s, Int32s]:
    """(starts, ends, first token of its sequence) of each row."""
    spans = batch.spans
    counts = np.bincount(spans[:, 0], minlength=batch.num_seqs)
    owner = np.repeat(np.arange(batch.num_seqs), np.maximum(counts, 1))
    row_starts, row_ends = starts[owner].copy(), ends[owner].copy()
    spanned = counts[owner] > 0
    row_starts[spanned] = first[spans[:, 0]] + spans[:, 1]
    row_ends[spanned] = first[spans[:, 0]] + spans[:, 2]
    return row_starts, row_ends, first[owner]


def _groups(seqlens: Int32s) -> tuple[Group, ...]:
    groups: list[Group] = []
    start = 0
    for length in seqlens.tolist():
        if groups and groups[-1].seqlen == length:
            groups[-1] = groups[-1]._replace(num_seqs=groups[-1].num_seqs + 1)
        else:
            groups.append(Group(start, 1, length))
        start += length
    return tuple(groups)
