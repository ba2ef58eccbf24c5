"""One pass over UTF-8 text: normalize cluster by cluster, cut into words, emit ids."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from hedgerow_gateway.tokenizer.unigram.clusters import one_cluster, property_of
from hedgerow_gateway.tokenizer.unigram.layout import (
    BUFFER_AT,
    DRAIN_BYTES,
    LONG_BYTES,
    MAX_KEY_BYTES,
    NOT_PENDING,
    SPACE_PENDING,
    START_PENDING,
    Action,
    Cell,
    Pipeline,
    Status,
)
from hedgerow_gateway.tokenizer.unigram.memory import (
    load_i64,
    load_u8,
    load_u64,
    store_i64,
    store_u8,
    store_u64,
    trailing_zeros,
)
from hedgerow_gateway.tokenizer.unigram.words import (
    drain,
    emit_one,
    emit_word,
    find_slot,
    hash_of,
    key_of,
    work_off,
)

_COUNT = int(Cell.COUNT) * 8
_LENGTH = int(Cell.LENGTH) * 8
_PENDING = int(Cell.PENDING) * 8
_STRIP = int(Cell.STRIP) * 8
_LAST_MARK = int(Cell.LAST_MARK) * 8
_CONTINUED = int(Cell.CONTINUED) * 8
_LAST_UNK = int(Cell.LAST_UNK) * 8
_CAPACITY = int(Cell.CAPACITY) * 8
_SOFT = int(Cell.SOFT) * 8
_LONG = int(Cell.LONG) * 8
_DONE, _FULL = int(Status.DONE), int(Status.FULL)
_CUT, _GROW = int(Status.CUT), int(Status.GROW)
_COPY, _SPACE = int(Action.COPY), int(Action.SPACE)
_A = int(Pipeline.A)

_HIGH = np.uint64(0x8080808080808080)
_ONES = np.uint64(0x0101010101010101)
_BELOW_33 = np.uint64(0x2121212121212121)
_RUN = 64
_NO, _YES = np.int64(0), np.int64(1)


@njit
def visible_end(source: Any, at: int, end: int, safe: int) -> int:
    """First position >= at whose byte is not "!" to "~", looking no further than ~64 bytes."""
    stop = min(end, at + _RUN)
    while at < stop and at <= safe:
        word = load_u64(source, at)
        # A byte's high bit: above ASCII, or below 33, or 127. Wrong ones stand behind a right one.
        odd = (word | ((word - _BELOW_33) & ~word) | (word + _ONES)) & _HIGH
        if odd != 0:
            return min(at + (trailing_zeros(odd) >> 3), end)
        at += 8
    while at < stop:
        byte = load_u8(source, at)
        if byte < 33 or byte > 126:
            return at
        at += 1
    return min(at, end)


@njit
def ends_word(tables: Any, t: Any, source: Any, at: int, end: int, more: int) -> bool:
    """True when a word of visible ASCII that stops before `at` certainly ends there."""
    if at >= end:
        return more == 0
    byte = load_u8(source, at)
    if byte >= 128 or (property_of(tables, t, byte) >> 5) & 7 != _SPACE:
        return False
    if byte != 32:
        return True  # a control: no cluster reaches across it
    return more == 0 if at + 1 >= end else load_u8(source, at + 1) < 128


@njit
def visible_word(
    tables: Any, t: Any, scratch: Any, out: Any, source: Any, start: int, stop: int, safe: int
) -> None:
    """Emit a whole word of visible ASCII straight from the source."""
    size = stop - start
    if size <= MAX_KEY_BYTES and start <= safe:
        k0, k1, k2 = key_of(source, start, size, _YES)
        found = find_slot(tables, t, k0, k1, k2, hash_of(k0, k1, k2))
        if found >= 0:
            emit_one(t, scratch, out, found)
            return
    copy_visible(scratch, source, start, stop, safe)
    emit_word(tables, t, scratch, out, _NO, size + 1)


@njit
def copy_visible(scratch: Any, source: Any, start: int, stop: int, safe: int) -> None:
    """Put a mark and source[start:stop] at the front of the buffer."""
    store_u8(scratch, BUFFER_AT, 32)
    to = BUFFER_AT + 1 - start
    at = start
    while at < stop and at <= safe:
        store_u64(scratch, to + at, load_u64(source, at))
        at += 8
    while at < stop:
        store_u8(scratch, to + at, load_u8(source, at))
        at += 1


@njit
def _finish(tables: Any, t: Any, scratch: Any, out: Any) -> int:
    strip = load_i64(scratch, _STRIP)
    if strip >= 0:
        store_i64(scratch, _LENGTH, strip)
    elif t.pipeline == _A and load_i64(scratch, _PENDING) == SPACE_PENDING:
        length = load_i64(scratch, _LENGTH)
        store_u8(scratch, BUFFER_AT + length, 32)
        store_i64(scratch, _LENGTH, length + 1)
    drain(tables, t, scratch, out, _YES)
    return _FULL if load_i64(scratch, _COUNT) >= out.shape[0] else _DONE


@njit
def _reset(scratch: Any, count: int) -> None:
    store_i64(scratch, _COUNT, count)
    store_i64(scratch, _LENGTH, 0)
    store_i64(scratch, _PENDING, START_PENDING)
    store_i64(scratch, _STRIP, -1)
    store_i64(scratch, _LAST_MARK, 0)
    store_i64(scratch, _CONTINUED, 0)
    store_i64(scratch, _LAST_UNK, 0)
    store_i64(scratch, _SOFT, DRAIN_BYTES)
    store_i64(scratch, _LONG, LONG_BYTES)


@njit
def _make_room(tables: Any, t: Any, scratch: Any, out: Any) -> bool:
    """Shorten the buffer. False when one word fills it and needs a larger one."""
    if load_i64(scratch, _STRIP) < 0:
        drain(tables, t, scratch, out, _NO)
        if load_i64(scratch, _LENGTH) >= load_i64(scratch, _LONG):
            work_off(tables, t, scratch, out)
    length = load_i64(scratch, _LENGTH)
    store_i64(scratch, _SOFT, length + DRAIN_BYTES)
    return length + DRAIN_BYTES + t.growth < load_i64(scratch, _CAPACITY)


@njit
def encode_text(
    tables: Any, t: Any, scratch: Any, out: Any, count: int, source: Any, start: int, end: int,
    more: int,
) -> int:  # fmt: skip
    """Encode source[start:end] into out[count:]; returns a Status, Cell.COUNT says how far.

    more: 1 when the text goes on behind `end`; then only words that no further text could change are
    emitted. Needs no word buffer beyond its longest word (a long word is worked off in parts).
    """
    _reset(scratch, count)
    room, safe = out.shape[0], len(source) - 24
    at = start
    while at < end:
        byte = load_u8(source, at)
        if 32 < byte < 127 and load_i64(scratch, _PENDING) != NOT_PENDING and t.plain_ascii != 0:
            stop = visible_end(source, at, end, safe)
            if ends_word(tables, t, source, stop, end, more):
                if load_i64(scratch, _LENGTH) > 0:
                    drain(tables, t, scratch, out, _YES)
                store_i64(scratch, _STRIP, -1)
                visible_word(tables, t, scratch, out, source, at, stop, safe)
                at = stop
                store_i64(scratch, _PENDING, SPACE_PENDING if at < end else NOT_PENDING)
                if at < end and load_u8(source, at) == 32:
                    at += 1
                if load_i64(scratch, _COUNT) >= room:
                    return _FULL
                continue
        at = one_cluster(tables, t, scratch, source, at, end, more)
        if at < 0:
            return -at
        if load_i64(scratch, _LENGTH) >= load_i64(scratch, _SOFT):
            if not _make_room(tables, t, scratch, out):
                return _GROW
            if load_i64(scratch, _COUNT) >= room:
                return _FULL
    if more != 0:
        return _CUT
    return _finish(tables, t, scratch, out)
