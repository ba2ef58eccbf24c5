"""The compiled functions that Python calls."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from hedgerow_gateway.tokenizer.unigram import cells
from hedgerow_gateway.tokenizer.unigram.keys import hash_of, key_of
from hedgerow_gateway.tokenizer.unigram.layout import (
    BUFFER_AT,
    RING,
    RING_AT,
    UNK_NODE,
    Status,
)
from hedgerow_gateway.tokenizer.unigram.memory import (
    NO,
    YES,
    address_of,
    int64,
    load_i64,
    load_u8,
    load_u32,
    store_f64,
    store_i64,
    store_u8,
    store_u32,
    store_u64,
)
from hedgerow_gateway.tokenizer.unigram.stream import encode_text
from hedgerow_gateway.tokenizer.unigram.viterbi import best_path, steps_of

_DONE = int(Status.DONE)
_READ_AHEAD = 24


@njit
def _encode(tables: Any, scratch: Any, out: Any, source: Any, more: int) -> int:
    place, text = address_of(scratch), address_of(source)
    store_i64(place + cells.OUT, address_of(out))
    store_i64(place + cells.ROOM, out.shape[0])
    end = text + len(source)
    status = encode_text(address_of(tables), place, NO, text, end, end - _READ_AHEAD, more)
    return load_i64(place + cells.COUNT) if status == _DONE else -status


@njit(cache=True)
def encode_one(tables: Any, scratch: Any, out: Any, source: Any, more: int) -> int:
    """Encode one text, keeping the GIL; returns the number of ids or minus a Status.

    A short text is done sooner than another thread would hand the GIL back.
    """
    return _encode(tables, scratch, out, source, more)


@njit(cache=True, nogil=True)
def encode_head(tables: Any, scratch: Any, out: Any, source: Any, more: int) -> int:
    """The same without the GIL."""
    return _encode(tables, scratch, out, source, more)


@njit(cache=True, nogil=True)
def encode_many(
    tables: Any, scratch: Any, out: Any, source: Any, bounds: Any, cu_seqlens: Any, first: int
) -> Any:
    """Encode texts first, first + 1, ... of source; returns (status, text that stopped it).

    bounds: int64 [n + 1], where each text begins in source
    cu_seqlens: int32 [n + 1], filled behind `first`
    """
    place, text = address_of(scratch), address_of(source)
    store_i64(place + cells.OUT, address_of(out))
    store_i64(place + cells.ROOM, out.shape[0])
    safe = text + len(source) - _READ_AHEAD
    for k in range(first, bounds.shape[0] - 1):
        count, start, end = int64(cu_seqlens[k]), text + bounds[k], text + bounds[k + 1]
        status = encode_text(address_of(tables), place, count, start, end, safe, NO)
        if status != _DONE:
            return status, k
        cu_seqlens[k + 1] = load_i64(place + cells.COUNT)
    return _DONE, bounds.shape[0] - 1


@njit(cache=True, nogil=True)
def prepare_scratch(scratch: Any, capacity: int) -> None:
    """Make a zeroed block ready for use."""
    place = address_of(scratch)
    store_i64(place + cells.CAPACITY, capacity)
    for k in range(RING):
        store_f64(place + RING_AT + k * 8, -np.inf)


@njit(cache=True, nogil=True)
def own_splits(tables: Any, scratch: Any, keys: Any, bounds: Any) -> Any:
    """int64 [n]: 2 when a key's best split is the key itself by a clear margin, 1 when it only
    is so for sums that start at 0, else 0."""
    place, text = address_of(scratch), address_of(keys)
    found = np.zeros(bounds.shape[0] - 1, np.int64)
    for k in range(found.shape[0]):
        start, size = text + bounds[k], bounds[k + 1] - bounds[k]
        for at in range(size):
            store_u8(place + BUFFER_AT + at, load_u8(start + at))
        close, _, _ = best_path(address_of(tables), place, NO, size, 0.0, -YES)
        step = load_u32(steps_of(place) + size * 4)
        if step & 127 == size and step >> 7 != UNK_NODE:
            found[k] = 1 if close else 2
    return found


@njit(cache=True, nogil=True)
def fill_slots(
    slots: Any, shift: int, mask: int, keys: Any, bounds: Any, first: Any, ids: Any
) -> None:
    """Insert keys into the empty SLOTS.

    keys: uint8, the texts of bounds int64 [n + 1] and 24 bytes more; first: int64 [n] of 0 and 1
    """
    table, text = address_of(slots), address_of(keys)
    for k in range(ids.shape[0]):
        k0, k1, k2 = key_of(text + bounds[k], bounds[k + 1] - bounds[k], int64(first[k]))
        at = int64(hash_of(k0, k1, k2) >> np.uint64(shift))
        while load_i64(table + (at << 5) + 16) != 0:
            at = (at + 1) & mask
        store_u64(table + (at << 5), k0)
        store_u64(table + (at << 5) + 8, k1)
        store_u64(table + (at << 5) + 16, k2)
        store_u32(table + (at << 5) + 24, int64(ids[k]))
