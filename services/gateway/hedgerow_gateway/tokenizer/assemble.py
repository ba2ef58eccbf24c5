"""Cut bare ids to a budget and put the special tokens around them. Pure array work."""

from __future__ import annotations

from typing import Literal

import numpy as np

from hedgerow_shared.ragged import TokenIds

Truncate = Literal["none", "start", "end"]


def cut(
    ids: TokenIds, cu: TokenIds, budget: int, *, keep_start: bool, keep_head: int = 0
) -> tuple[TokenIds, TokenIds]:
    """Cut every text longer than `budget` ids; return new (ids, cu_seqlens).

    keep_start: keep the first ids (truncate "end"); otherwise the first `keep_head` ids
        (a prompt) and then the last ones (truncate "start")
    """
    lens = np.diff(cu)
    if not np.any(lens > budget):
        return ids, cu
    head = budget if keep_start else min(keep_head, budget)
    tail = budget - head
    parts: list[TokenIds] = []
    for start, stop in zip(cu[:-1].tolist(), cu[1:].tolist(), strict=True):
        if stop - start <= budget:
            parts.append(ids[start:stop])
            continue
        parts.append(ids[start : start + head])
        if tail:
            parts.append(ids[stop - tail : stop])
    out = np.zeros_like(cu)
    np.cumsum(np.minimum(lens, budget), out=out[1:])
    return np.concatenate(parts), out


def surround(
    ids: TokenIds, cu: TokenIds, prefix: TokenIds, suffix: TokenIds
) -> tuple[TokenIds, TokenIds]:
    """Put `prefix` before and `suffix` after every text; return new (ids, cu_seqlens)."""
    n, before, after = cu.shape[0] - 1, prefix.shape[0], suffix.shape[0]
    if not before and not after:
        return ids, cu
    if n == 1:
        joined = np.concatenate((prefix, ids, suffix))
        return joined, np.array((0, joined.shape[0]), np.int32)
    grown = cu + np.arange(n + 1, dtype=np.int32) * np.int32(before + after)
    out = np.empty(int(grown[-1]), np.int32)
    shift = np.repeat(grown[:-1] + before - cu[:-1], np.diff(cu))
    out[np.arange(ids.shape[0], dtype=np.int32) + shift] = ids
    for i in range(before):
        out[grown[:-1] + i] = prefix[i]
    for i in range(after):
        out[grown[1:] - after + i] = suffix[i]
    return out, grown


def pair_lengths(first: int, second: int, budget: int) -> tuple[int, int]:
    """How many ids of each text of a pair are kept: the longer one gives way first.

    The same split as Hugging Face's "longest_first": only the longer text is cut while the
    shorter fits in half the budget; otherwise both get half, the second the odd token.
    """
    if first + second <= budget:
        return first, second
    short, long = min(first, second), max(first, second)
    long = short if short > budget else max(short, budget - short)
    if short + long > budget:
        short, long = budget // 2, budget // 2 + budget % 2
    return (short, long) if first <= second else (long, short)
