"""Pieces of chunks -> the one RaggedBatch that an engine step takes. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hedgerow_shared.ragged import RaggedBatch, TokenIds


def cut(batch: RaggedBatch, start: int, stop: int) -> RaggedBatch:
    """Sequences [start, stop) of a batch; `input_ids` is a view."""
    cu = batch.cu_seqlens
    spans = batch.spans
    if spans.shape[0]:
        inside = (spans[:, 0] >= start) & (spans[:, 0] < stop)
        spans = spans[inside] - np.array([start, 0, 0], np.int32)
    return RaggedBatch(
        batch.input_ids[cu[start] : cu[stop]],
        cu[start : stop + 1] - cu[start],
        batch.outputs[start:stop],
        batch.pair_start[start:stop],
        batch.prompt_len[start:stop],
        spans,
    )


def join(parts: Sequence[RaggedBatch]) -> RaggedBatch:
    """Put batches behind each other. Offsets a part does not have become zeros."""
    if len(parts) == 1:
        return parts[0]
    first_seq = np.cumsum([0] + [p.num_seqs for p in parts])
    cu_seqlens = np.zeros(int(first_seq[-1]) + 1, np.int32)
    np.cumsum(np.concatenate([p.seqlens for p in parts]), out=cu_seqlens[1:])
    spans = [
        p.spans + np.array([at, 0, 0], np.int32)
        for p, at in zip(parts, first_seq, strict=False)
        if p.spans.shape[0]
    ]
    return RaggedBatch(
        np.concatenate([p.input_ids for p in parts]),
        cu_seqlens,
        tuple(output for p in parts for output in p.outputs),
        _offsets([p.pair_start for p in parts], parts),
        _offsets([p.prompt_len for p in parts], parts),
        np.concatenate(spans) if spans else np.zeros((0, 3), np.int32),
    )


def distinct(batch: RaggedBatch) -> tuple[RaggedBatch, list[int] | None]:
    """The batch without sequences that repeat an earlier one, and for each of its sequences the
    row of the smaller batch that answers it; None: nothing repeats, the batch is as it was.

    Two gateways may send the same query at once, and texts of a corpus repeat.
    """
    count = batch.num_seqs
    if count < 2 or batch.spans.shape[0]:
        return batch, None
    raw, bounds = batch.input_ids.tobytes(), batch.cu_seqlens.tolist()
    pairs = batch.pair_start.tolist() or [0] * count
    prompts = batch.prompt_len.tolist() or [0] * count
    seen: dict[object, int] = {}
    kept: list[int] = []
    rows: list[int] = []
    for i in range(count):
        ids = raw[4 * bounds[i] : 4 * bounds[i + 1]]
        row = seen.setdefault((ids, pairs[i], prompts[i], batch.outputs[i]), len(kept))
        if row == len(kept):
            kept.append(i)
        rows.append(row)
    if len(kept) == count:
        return batch, None
    return join([cut(batch, i, i + 1) for i in kept]), rows


def _offsets(columns: Sequence[TokenIds], parts: Sequence[RaggedBatch]) -> TokenIds:
    """One int32 per sequence, or empty when no part has any."""
    if not any(c.size for c in columns):
        return columns[0]
    filled = [
        c if c.size else np.zeros(p.num_seqs, np.int32) for c, p in zip(columns, parts, strict=True)
    ]
    return np.concatenate(filled)
