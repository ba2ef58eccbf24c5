"""From the word buffer to ids: whole words by one look-up, the rest by the best split.

A word that is one piece, and whose best split is that piece, was found when the tables were
built. Everything else is cut where no piece spans two neighbouring bytes (before the comma of
"word,"): sums of the parts are then ordered as in the whole word unless two are nearly equal,
and in that case the whole word is split at once. Splits are remembered per thread.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from hedgerow_gateway.tokenizer.unigram import cells, header
from hedgerow_gateway.tokenizer.unigram.keys import hash_of, key_of
from hedgerow_gateway.tokenizer.unigram.layout import (
    BUFFER_AT,
    CACHE_AT,
    CACHE_SLOTS,
    CACHED_IDS,
    LONG_BYTES,
    MAX_KEY_BYTES,
)
from hedgerow_gateway.tokenizer.unigram.memory import (
    NO,
    YES,
    int64,
    load_f64,
    load_i64,
    load_u8,
    load_u32,
    load_u64,
    store_f64,
    store_i64,
    store_u8,
    store_u32,
    store_u64,
)
from hedgerow_gateway.tokenizer.unigram.viterbi import best_path, emit_path

_CACHE_MASK = np.uint64(CACHE_SLOTS - 1)


@njit
def find_slot(tables: int, k0: Any, k1: Any, k2: Any, mixed: Any) -> int:
    """Id of the piece with this key, or -1."""
    slots = tables + load_i64(tables + header.SLOTS)
    at = int64(mixed >> np.uint64(load_i64(tables + header.SLOT_SHIFT)))
    while True:
        slot = slots + (at << 5)
        found = load_u64(slot + 16)
        if found == k2 and load_u64(slot) == k0 and load_u64(slot + 8) == k1:
            return load_u32(slot + 24)
        if found == 0:
            return -1
        at = (at + 1) & load_i64(tables + header.SLOT_MASK)


@njit
def emit_one(scratch: int, found: int) -> None:
    """Append an id that is not UNK."""
    count = load_i64(scratch + cells.COUNT)
    if count < load_i64(scratch + cells.ROOM):
        store_u32(load_i64(scratch + cells.OUT) + (count << 2), found)
        store_i64(scratch + cells.COUNT, count + 1)
    store_i64(scratch + cells.LAST_UNK, 0)


@njit
def _recall(tables: int, scratch: int, slot: int) -> None:
    """Append the ids of a remembered split."""
    out, room = load_i64(scratch + cells.OUT), load_i64(scratch + cells.ROOM)
    count, unk_id = load_i64(scratch + cells.COUNT), load_i64(tables + header.UNK_ID)
    number, found, k = load_u32(slot + 24), load_u32(slot + 28), 0
    if found == unk_id and load_i64(scratch + cells.LAST_UNK) != 0:
        k = 1
    while k < number:
        found = load_u32(slot + 28 + (k << 2))
        if count < room:
            store_u32(out + (count << 2), found)
            count += 1
        k += 1
    store_i64(scratch + cells.COUNT, count)
    store_i64(scratch + cells.LAST_UNK, 1 if found == unk_id else 0)


@njit
def _remember(scratch: int, k0: Any, k1: Any, k2: Any, start: int) -> None:
    """Keep the ids from `start` on as the split of this key, if they fit."""
    slot = cache_slot(scratch, hash_of(k0, k1, k2))
    count = load_i64(scratch + cells.COUNT)
    number = count - start
    if number > CACHED_IDS or count >= load_i64(scratch + cells.ROOM):
        return
    store_u64(slot, k0)
    store_u64(slot + 8, k1)
    store_u64(slot + 16, k2)
    store_u32(slot + 24, number)
    out = load_i64(scratch + cells.OUT) + (start << 2)
    for k in range(number):
        store_u32(slot + 28 + (k << 2), load_u32(out + (k << 2)))


@njit
def cache_slot(scratch: int, mixed: Any) -> int:
    """Address of the slot where a split with this hash would be remembered."""
    return scratch + CACHE_AT + (int64(mixed & _CACHE_MASK) << 6)


@njit
def emit_known(tables: int, scratch: int, k0: Any, k1: Any, k2: Any) -> bool:
    """Emit what is a piece of its own or remembered. False: neither."""
    mixed = hash_of(k0, k1, k2)
    found = find_slot(tables, k0, k1, k2, mixed)
    if found >= 0:
        emit_one(scratch, found)
        return True
    slot = cache_slot(scratch, mixed)
    if load_u64(slot + 16) == k2 and load_u64(slot) == k0 and load_u64(slot + 8) == k1:
        _recall(tables, scratch, slot)
        return True
    return False


@njit
def _emit_part(tables: int, scratch: int, start: int, stop: int, first: int) -> bool:
    """Emit buffer[start:stop], a part of a word; first is 1 when it starts with the mark.

    False (nothing emitted) when two sums were too close to be trusted: those of a later part
    start at 0 here, and do not in the whole word.
    """
    size = stop - start - first
    k0, k1, k2 = np.uint64(0), np.uint64(0), np.uint64(0)
    if size <= MAX_KEY_BYTES:
        k0, k1, k2 = key_of(scratch + BUFFER_AT + start + first, size, first)
        if emit_known(tables, scratch, k0, k1, k2):
            return True
    close, _, _ = best_path(tables, scratch, start, stop, 0.0, -YES)
    if close and first == 0:
        return False
    before, fused = load_i64(scratch + cells.COUNT), load_i64(scratch + cells.LAST_UNK)
    emit_path(tables, scratch, start, stop)
    if size <= MAX_KEY_BYTES and fused == 0:
        _remember(scratch, k0, k1, k2, before)
    return True


@njit
def _next_cut(tables: int, scratch: int, at: int, stop: int) -> int:
    """The first position > at where no piece spans the two bytes around it, else `stop`."""
    joins = tables + load_i64(tables + header.JOINS)
    text = scratch + BUFFER_AT
    before = min(load_u8(text + at), 128)
    at += 1
    while at < stop:
        after = min(load_u8(text + at), 128)
        bits = load_u32(joins + ((before * 5 + (after >> 5)) << 2))
        if (bits >> (after & 31)) & 1 == 0:
            return at
        before = after
        at += 1
    return stop


@njit
def emit_word(tables: int, scratch: int, start: int, stop: int) -> None:
    """Emit the word buffer[start:stop], which starts with its mark."""
    store_i64(scratch + cells.LAST_UNK, 0)
    size = stop - start - 1
    if size > MAX_KEY_BYTES:
        _split_word(tables, scratch, start, stop)
        return
    k0, k1, k2 = key_of(scratch + BUFFER_AT + start + 1, size, YES)
    if not emit_known(tables, scratch, k0, k1, k2):
        emit_unknown(tables, scratch, start, stop, k0, k1, k2)


@njit
def emit_unknown(
    tables: int, scratch: int, start: int, stop: int, k0: Any, k1: Any, k2: Any
) -> None:
    """Split the word buffer[start:stop] and remember it under its key."""
    store_i64(scratch + cells.LAST_UNK, 0)
    before = load_i64(scratch + cells.COUNT)
    _split_word(tables, scratch, start, stop)
    _remember(scratch, k0, k1, k2, before)


@njit
def _split_word(tables: int, scratch: int, start: int, stop: int) -> None:
    """Emit a word that is no piece of its own: part by part, or at once where that is unsafe."""
    count = load_i64(scratch + cells.COUNT)
    at = _next_cut(tables, scratch, min(start + 1, stop - 1), stop)
    if at < stop and stop - start <= LONG_BYTES:
        safe = _emit_part(tables, scratch, start, at, YES)
        while safe and at < stop:
            end = _next_cut(tables, scratch, at, stop)
            safe = _emit_part(tables, scratch, at, end, NO)
            at = end
        if safe:
            return
        store_i64(scratch + cells.COUNT, count)
        store_i64(scratch + cells.LAST_UNK, 0)
    best_path(tables, scratch, start, stop, 0.0, -YES)
    emit_path(tables, scratch, start, stop)


@njit
def drain(tables: int, scratch: int, final: int) -> None:
    """Emit the complete words of the buffer (all of it when `final` is 1); move the rest up."""
    length, start = load_i64(scratch + cells.LENGTH), NO
    stop = length if final != 0 else load_i64(scratch + cells.LAST_MARK)
    if stop == 0:
        return
    if load_i64(scratch + cells.CONTINUED) != 0:
        start = _next_mark(scratch, NO, stop)
        best_path(tables, scratch, NO, start, load_f64(scratch + cells.CARRY), -YES)
        emit_path(tables, scratch, NO, start)
        store_i64(scratch + cells.CONTINUED, 0)
    while start < stop:
        end = _next_mark(scratch, start + 1, stop)
        emit_word(tables, scratch, start, end)
        start = end
    _move(scratch, stop, length)


@njit
def work_off(tables: int, scratch: int) -> None:
    """Emit the beginning of a long word, up to the last place that no piece can span.

    What follows cannot change it: every piece that starts before that place ends before it,
    whatever text comes. Without such a place the word is left to grow to twice its length.
    """
    length, carry = load_i64(scratch + cells.LENGTH), 0.0
    if load_i64(scratch + cells.CONTINUED) != 0:
        carry = load_f64(scratch + cells.CARRY)
    else:
        store_i64(scratch + cells.LAST_UNK, 0)
    last = length - load_i64(tables + header.MAX_PIECE_BYTES)
    _, split, score = best_path(tables, scratch, NO, length, carry, last)
    if split > 0:
        emit_path(tables, scratch, NO, split)
        _move(scratch, split, length)
        store_i64(scratch + cells.CONTINUED, 1)
        store_f64(scratch + cells.CARRY, score)
        length -= split
    store_i64(scratch + cells.LONG, max(LONG_BYTES, 2 * length))


@njit
def _next_mark(scratch: int, at: int, stop: int) -> int:
    """Position of the first word mark in buffer[at:stop], else `stop`."""
    while at < stop and load_u8(scratch + BUFFER_AT + at) != 32:
        at += 1
    return at


@njit
def _move(scratch: int, start: int, stop: int) -> None:
    """Bring buffer[start:stop] to the front."""
    text = scratch + BUFFER_AT
    for at in range(start, stop):
        store_u8(text + at - start, load_u8(text + at))
    store_i64(scratch + cells.LENGTH, stop - start)
    store_i64(scratch + cells.LAST_MARK, 0)
