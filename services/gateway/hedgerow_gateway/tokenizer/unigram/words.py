"""From the word buffer to ids: whole words by one look-up, the rest by the best split.

A word that is one piece, and whose best split is that piece, was found when the tables were
built. Everything else is cut where no piece spans two neighbouring bytes (before the comma of
"word,"): sums of the parts are then ordered as in the whole word unless two are nearly equal,
and in that case the whole word is split at once. Splits are remembered per thread.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from hedgerow_gateway.tokenizer.unigram.layout import (
    BUFFER_AT,
    CACHE_AT,
    CACHE_SLOTS,
    CACHED_IDS,
    MAX_KEY_BYTES,
    LONG_BYTES,
    Cell,
    Field,
)
from hedgerow_gateway.tokenizer.unigram.memory import (
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

_COUNT = int(Cell.COUNT) * 8
_LENGTH = int(Cell.LENGTH) * 8
_LAST_MARK = int(Cell.LAST_MARK) * 8
_CONTINUED = int(Cell.CONTINUED) * 8
_CARRY = int(Cell.CARRY) * 8
_LAST_UNK = int(Cell.LAST_UNK) * 8
_LONG = int(Cell.LONG) * 8

_PAGES, _PROPS, _STEP = int(Field.PAGES) * 8, int(Field.PROPS) * 8, int(Field.STEP) * 8
_UNITS, _NUM_UNITS = int(Field.UNITS) * 8, int(Field.NUM_UNITS) * 8
_BLOB, _JOINS = int(Field.BLOB) * 8, int(Field.JOINS) * 8
_NODES, _IDS, _SLOTS = int(Field.NODES) * 8, int(Field.IDS) * 8, int(Field.SLOTS) * 8
_SLOT_SHIFT, _SLOT_MASK = int(Field.SLOT_SHIFT) * 8, int(Field.SLOT_MASK) * 8
_UNK_ID, _UNK_SCORE = int(Field.UNK_ID) * 8, int(Field.UNK_SCORE) * 8
_MAX_PIECE, _MAX_GROWTH = int(Field.MAX_PIECE_BYTES) * 8, int(Field.MAX_GROWTH) * 8
_PIPELINE, _PLAIN = int(Field.PIPELINE) * 8, int(Field.PLAIN_ASCII) * 8
_ROOT_BASE = int(Field.ROOT_BASE) * 8

_ONE = np.uint64(1)
# As numpy integers these are typed int64; a plain 0 would compile another copy of the callee.
_ZERO, _ONE_INT = np.int64(0), np.int64(1)
_NO_SCORE = 0.0
_MIX0 = np.uint64(0x9E3779B97F4A7C15)
_MIX1 = np.uint64(0xC2B2AE3D27D4EB4F)
_MIX2 = np.uint64(0x165667B19E3779F9)
_HALF = np.uint64(32)
_FIRST = 64
_SIZE_SHIFT = np.uint64(56)


class Consts(NamedTuple):
    """The header of the tables, read once per call."""

    pages: int
    props: int
    step: int
    units: int
    num_units: int
    blob: int
    joins: int
    nodes: int
    ids: int
    slots: int
    slot_shift: int
    slot_mask: int
    unk_id: int
    unk_score: float
    max_piece: int
    growth: int
    pipeline: int
    plain_ascii: int
    root_base: int


@njit
def open_tables(tables: Any) -> Any:
    """Read the header."""
    return Consts(
        load_i64(tables, _PAGES),
        load_i64(tables, _PROPS),
        load_i64(tables, _STEP),
        load_i64(tables, _UNITS),
        load_i64(tables, _NUM_UNITS),
        load_i64(tables, _BLOB),
        load_i64(tables, _JOINS),
        load_i64(tables, _NODES),
        load_i64(tables, _IDS),
        load_i64(tables, _SLOTS),
        load_i64(tables, _SLOT_SHIFT),
        load_i64(tables, _SLOT_MASK),
        load_i64(tables, _UNK_ID),
        load_f64(tables, _UNK_SCORE),
        load_i64(tables, _MAX_PIECE),
        load_i64(tables, _MAX_GROWTH),
        load_i64(tables, _PIPELINE),
        load_i64(tables, _PLAIN),
        load_i64(tables, _ROOT_BASE),
    )


@njit
def low_bytes(word: Any, count: int) -> Any:
    """The lowest `count` bytes of a uint64."""
    if count >= 8:
        return word
    return word & ((_ONE << np.uint64(8 * count)) - _ONE)


@njit
def key_of(memory: Any, at: int, size: int, first: int) -> Any:
    """Three uint64 that name `size` <= 23 bytes; reads up to 24 bytes behind `at`.

    first: 1 when the bytes follow a word mark, which is not part of them
    """
    k0, k1, k2 = low_bytes(load_u64(memory, at), size), np.uint64(0), np.uint64(0)
    if size > 8:
        k1 = low_bytes(load_u64(memory, at + 8), size - 8)
        if size > 16:
            k2 = low_bytes(load_u64(memory, at + 16), size - 16)
    return k0, k1, k2 | np.uint64(size + first * _FIRST) << _SIZE_SHIFT


@njit
def hash_of(k0: Any, k1: Any, k2: Any) -> Any:
    """A uint64 whose high and low bits are both well mixed."""
    mixed = (k0 ^ (k1 * _MIX1) ^ (k2 * _MIX2)) * _MIX0
    return (mixed ^ (mixed >> _HALF)) * _MIX1


@njit
def find_slot(tables: Any, t: Any, k0: Any, k1: Any, k2: Any, mixed: Any) -> int:
    """Id of the piece with this key, or -1."""
    at = np.int64(mixed >> np.uint64(t.slot_shift))
    while True:
        slot = t.slots + (at << 5)
        found = load_u64(tables, slot + 16)
        if found == k2 and load_u64(tables, slot) == k0 and load_u64(tables, slot + 8) == k1:
            return load_u32(tables, slot + 24)
        if found == 0:
            return -1
        at = (at + 1) & t.slot_mask


@njit
def emit_one(t: Any, scratch: Any, out: Any, found: int) -> None:
    """Append an id that is not UNK."""
    count = load_i64(scratch, _COUNT)
    if count < out.shape[0]:
        store_u32(out, count << 2, found)
        store_i64(scratch, _COUNT, count + 1)
    store_i64(scratch, _LAST_UNK, 0)


@njit
def _recall(t: Any, scratch: Any, out: Any, slot: int) -> None:
    """Append the ids of a remembered split."""
    number = load_u32(scratch, slot + 24)
    count, room, k = load_i64(scratch, _COUNT), out.shape[0], 0
    found = load_u32(scratch, slot + 28)
    if found == t.unk_id and load_i64(scratch, _LAST_UNK) != 0:
        k = 1
    while k < number:
        found = load_u32(scratch, slot + 28 + (k << 2))
        if count < room:
            store_u32(out, count << 2, found)
            count += 1
        k += 1
    store_i64(scratch, _COUNT, count)
    store_i64(scratch, _LAST_UNK, 1 if found == t.unk_id else 0)


@njit
def _remember(
    scratch: Any, out: Any, slot: int, k0: Any, k1: Any, k2: Any, start: int
) -> None:
    """Keep out[start:] as the split of this key, if it fits."""
    number = load_i64(scratch, _COUNT) - start
    if number > CACHED_IDS or start + number >= out.shape[0]:
        return
    store_u64(scratch, slot, k0)
    store_u64(scratch, slot + 8, k1)
    store_u64(scratch, slot + 16, k2)
    store_u32(scratch, slot + 24, number)
    for k in range(number):
        store_u32(scratch, slot + 28 + (k << 2), load_u32(out, (start + k) << 2))


@njit
def _segment(
    tables: Any, t: Any, scratch: Any, out: Any, start: int, stop: int, first: int, look: bool
) -> bool:
    """Emit buffer[start:stop]. False (nothing emitted) when sums were too close to be trusted.

    first: 1 when the word's mark is part of the range; then the sums start where they must
    look: False when the range is known not to be a piece
    """
    size, at = stop - start - first, BUFFER_AT + start + first
    fits = size <= MAX_KEY_BYTES
    slot, k0, k1, k2 = 0, np.uint64(0), np.uint64(0), np.uint64(0)
    if fits:
        k0, k1, k2 = key_of(scratch, at, size, first)
        mixed = hash_of(k0, k1, k2)
        if look:
            found = find_slot(tables, t, k0, k1, k2, mixed)
            if found >= 0:
                emit_one(t, scratch, out, found)
                return True
        slot = CACHE_AT + (np.int64(mixed & np.uint64(CACHE_SLOTS - 1)) << 6)
        if (
            load_u64(scratch, slot + 16) == k2
            and load_u64(scratch, slot) == k0
            and load_u64(scratch, slot + 8) == k1
        ):
            _recall(t, scratch, out, slot)
            return True
    close, _, _ = best_path(tables, t, scratch, start, stop, _NO_SCORE, -_ONE_INT)
    if close and first == 0:
        return False
    before, fused = load_i64(scratch, _COUNT), load_i64(scratch, _LAST_UNK)
    emit_path(tables, t, scratch, out, start, stop)
    if fits and fused == 0:
        _remember(scratch, out, slot, k0, k1, k2, before)
    return True


@njit
def _next_cut(tables: Any, t: Any, scratch: Any, at: int, stop: int) -> int:
    """The first position > at where no piece spans the two bytes around it, else `stop`."""
    before = min(load_u8(scratch, BUFFER_AT + at), 128)
    at += 1
    while at < stop:
        after = min(load_u8(scratch, BUFFER_AT + at), 128)
        bits = load_u32(tables, t.joins + (before * 5 + (after >> 5)) * 4)
        if (bits >> (after & 31)) & 1 == 0:
            return at
        before = after
        at += 1
    return stop


@njit
def emit_word(tables: Any, t: Any, scratch: Any, out: Any, start: int, stop: int) -> None:
    """Emit the word buffer[start:stop], which starts with its mark."""
    store_i64(scratch, _LAST_UNK, 0)
    if stop - start - 1 <= MAX_KEY_BYTES:
        k0, k1, k2 = key_of(scratch, BUFFER_AT + start + 1, stop - start - 1, _ONE_INT)
        found = find_slot(tables, t, k0, k1, k2, hash_of(k0, k1, k2))
        if found >= 0:
            emit_one(t, scratch, out, found)
            return
    split_word(tables, t, scratch, out, start, stop)


@njit
def split_word(tables: Any, t: Any, scratch: Any, out: Any, start: int, stop: int) -> None:
    """Emit a word that is no piece of its own."""
    count = load_i64(scratch, _COUNT)
    if stop - start <= LONG_BYTES:
        at, end = start, _next_cut(tables, t, scratch, min(start + 1, stop - 1), stop)
        whole = end == stop
        while _segment(
            tables, t, scratch, out, at, end, 1 if at == start else 0, not whole
        ):
            if end == stop:
                return
            at, end = end, _next_cut(tables, t, scratch, end, stop)
    store_i64(scratch, _COUNT, count)
    store_i64(scratch, _LAST_UNK, 0)
    best_path(tables, t, scratch, start, stop, _NO_SCORE, -_ONE_INT)
    emit_path(tables, t, scratch, out, start, stop)


@njit
def drain(tables: Any, t: Any, scratch: Any, out: Any, final: int) -> None:
    """Emit the complete words of the buffer (all of it when `final` is 1) and move the rest up."""
    length, start = load_i64(scratch, _LENGTH), _ZERO
    stop = length if final != 0 else load_i64(scratch, _LAST_MARK)
    if stop > 0 and load_i64(scratch, _CONTINUED) != 0:
        start = _next_mark(scratch, _ZERO, stop)
        best_path(tables, t, scratch, _ZERO, start, load_f64(scratch, _CARRY), -_ONE_INT)
        emit_path(tables, t, scratch, out, _ZERO, start)
        store_i64(scratch, _CONTINUED, 0)
    while start < stop:
        end = _next_mark(scratch, start + 1, stop)
        emit_word(tables, t, scratch, out, start, end)
        start = end
    _move(scratch, stop, length)


@njit
def work_off(tables: Any, t: Any, scratch: Any, out: Any) -> None:
    """Emit the beginning of a long word, up to the last place that no piece can span.

    What follows cannot change it: every piece that starts before that place ends before it,
    whatever text comes. Without such a place the word is left to grow to twice its length.
    """
    length, carry = load_i64(scratch, _LENGTH), _NO_SCORE
    if load_i64(scratch, _CONTINUED) != 0:
        carry = load_f64(scratch, _CARRY)
    else:
        store_i64(scratch, _LAST_UNK, 0)
    _, split, score = best_path(tables, t, scratch, _ZERO, length, carry, length - t.max_piece)
    if split > 0:
        emit_path(tables, t, scratch, out, _ZERO, split)
        _move(scratch, split, length)
        store_i64(scratch, _CONTINUED, 1)
        store_f64(scratch, _CARRY, score)
        length -= split
    store_i64(scratch, _LONG, max(LONG_BYTES, 2 * length))


@njit
def _next_mark(scratch: Any, at: int, stop: int) -> int:
    """Position of the first word mark in buffer[at:stop], else `stop`."""
    while at < stop and load_u8(scratch, BUFFER_AT + at) != 32:
        at += 1
    return at


@njit
def _move(scratch: Any, start: int, stop: int) -> None:
    """Bring buffer[start:stop] to the front."""
    for at in range(start, stop):
        store_u8(scratch, BUFFER_AT + at - start, load_u8(scratch, BUFFER_AT + at))
    store_i64(scratch, _LENGTH, stop - start)
    store_i64(scratch, _LAST_MARK, 0)
