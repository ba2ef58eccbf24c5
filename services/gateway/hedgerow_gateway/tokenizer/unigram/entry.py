"""The compiled functions that Python calls."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from hedgerow_gateway.tokenizer.unigram.layout import (
    BUFFER_AT,
    CACHE_AT,
    RING,
    RING_AT,
    UNK_NODE,
    Cell,
    Status,
)
from hedgerow_gateway.tokenizer.unigram.memory import (
    load_i64,
    load_u8,
    load_u32,
    store_f64,
    store_i64,
    store_u8,
)
from hedgerow_gateway.tokenizer.unigram.stream import encode_text
from hedgerow_gateway.tokenizer.unigram.viterbi import best_path, steps_at
from hedgerow_gateway.tokenizer.unigram.words import open_tables

_COUNT = int(Cell.COUNT) * 8
_CAPACITY = int(Cell.CAPACITY) * 8
_DONE = int(Status.DONE)
_NO = np.int64(0)


@njit(cache=True)
def encode_one(tables: Any, scratch: Any, out: Any, source: Any, more: int) -> int:
    """Encode one text and keep the GIL: a short text must not wait to get it back."""
    t = open_tables(tables)
    return encode_text(tables, t, scratch, out, _NO, source, _NO, len(source), more)


@njit(cache=True, nogil=True)
def encode_many(
    tables: Any, scratch: Any, out: Any, source: Any, bounds: Any, cu_seqlens: Any, first: int
) -> Any:
    """Encode texts first, first + 1, ... of source; returns (status, text that stopped it).

    bounds: int64 [n + 1], where each text begins in source
    cu_seqlens: int32 [n + 1], filled behind `first`
    """
    t = open_tables(tables)
    for k in range(first, bounds.shape[0] - 1):
        status = encode_text(
            tables, t, scratch, out, np.int64(cu_seqlens[k]), source, bounds[k], bounds[k + 1], _NO
        )
        if status != _DONE:
            return status, k
        cu_seqlens[k + 1] = load_i64(scratch, _COUNT)
    return _DONE, bounds.shape[0] - 1


@njit(cache=True, nogil=True)
def prepare_scratch(scratch: Any, capacity: int) -> None:
    """Make a zeroed block ready for use."""
    store_i64(scratch, _CAPACITY, capacity)
    for k in range(RING):
        store_f64(scratch, RING_AT + k * 8, -np.inf)


@njit(cache=True, nogil=True)
def own_splits(tables: Any, scratch: Any, keys: Any, bounds: Any) -> Any:
    """int64 [n]: 2 when a key's best split is the key itself by a clear margin, 1 when it only
    is so for sums that start at 0, else 0."""
    t = open_tables(tables)
    found = np.zeros(bounds.shape[0] - 1, np.int64)
    for k in range(found.shape[0]):
        size = bounds[k + 1] - bounds[k]
        for at in range(size):
            store_u8(scratch, BUFFER_AT + at, load_u8(keys, bounds[k] + at))
        close, _, _ = best_path(tables, t, scratch, 0, size, 0.0, -1)
        step = load_u32(scratch, steps_at(scratch) + size * 4)
        if step & 127 == size and step >> 7 != UNK_NODE:
            found[k] = 1 if close else 2
    return found


@njit(cache=True, nogil=True)
def forget(scratch: Any) -> None:
    """Empty the thread's memory of splits."""
    for at in range(CACHE_AT, RING_AT):
        store_u8(scratch, at, 0)
