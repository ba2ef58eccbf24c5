"""Normalization of one grapheme cluster into the word buffer."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from hedgerow_gateway.tokenizer.unigram.layout import (
    BUFFER_AT,
    NOT_PENDING,
    SPACE_PENDING,
    Action,
    Cell,
    Pipeline,
    Status,
)
from hedgerow_gateway.tokenizer.unigram.memory import (
    load_i64,
    load_u8,
    load_u32,
    store_i64,
    store_u8,
)
_LENGTH = int(Cell.LENGTH) * 8
_PENDING = int(Cell.PENDING) * 8
_STRIP = int(Cell.STRIP) * 8
_LAST_MARK = int(Cell.LAST_MARK) * 8
_CAPACITY = int(Cell.CAPACITY) * 8
_CUT, _GROW = int(Status.CUT), int(Status.GROW)
_COPY, _REPLACE = int(Action.COPY), int(Action.REPLACE)
_SPACE, _MARK, _HOLD = int(Action.SPACE), int(Action.MARK), int(Action.HOLD)
_B = int(Pipeline.B)
_BOUNDARY = 0xFF
_SHORT = 6
_NO = np.int64(0)
_VALUE = 1 << 31


@njit
def decode(source: Any, at: int) -> Any:
    """(code point, bytes) of the UTF-8 character at `at`."""
    c = load_u8(source, at)
    if c < 0x80:
        return c, 1
    if c < 0xE0:
        return (c & 31) << 6 | load_u8(source, at + 1) & 63, 2
    low = (load_u8(source, at + 1) & 63) << 6 | load_u8(source, at + 2) & 63
    if c < 0xF0:
        return (c & 15) << 12 | low, 3
    return (c & 7) << 18 | low << 6 | load_u8(source, at + 3) & 63, 4


@njit
def property_of(tables: Any, t: Any, point: int) -> int:
    """The entry of PROPS for a code point."""
    page = load_u32(tables, t.pages + ((point >> 7) << 2))
    return load_u32(tables, t.props + ((page << 7 | point & 127) << 2))


@njit
def one_cluster(
    tables: Any, t: Any, scratch: Any, source: Any, at: int, end: int, more: int
) -> int:
    """Normalize the cluster that starts at `at`; return where it ends, or minus a Status."""
    point, width = decode(source, at)
    entry = property_of(tables, t, point)
    after = at + width
    if after >= end:
        if more != 0:
            return -_CUT
    elif entry & 31 != 0 or load_u8(source, after) >= 128:
        following, _ = decode(source, after)
        kind = property_of(tables, t, following) & 31
        if load_u8(tables, t.step + ((entry & 31) << 5 | kind)) != _BOUNDARY:
            return _long_cluster(tables, t, scratch, source, at, end, more)
    write_char(tables, t, scratch, source, at, width, entry)
    return after


@njit
def _long_cluster(
    tables: Any, t: Any, scratch: Any, source: Any, at: int, end: int, more: int
) -> int:
    stop = _cluster_end(tables, t, source, at, end)
    if stop >= end and more != 0:
        return -_CUT
    if stop - at < _SHORT:
        found = _shortest_key(tables, t, source, at, stop)
        if found >= 0:
            _write_replacement(tables, t, scratch, found)
            return stop
    limit = load_i64(scratch, _CAPACITY) - t.growth
    while at < stop:
        if load_i64(scratch, _LENGTH) >= limit:
            return -_GROW
        point, width = decode(source, at)
        write_char(tables, t, scratch, source, at, width, property_of(tables, t, point))
        at += width
    return stop


@njit
def _cluster_end(tables: Any, t: Any, source: Any, at: int, end: int) -> int:
    point, width = decode(source, at)
    state = property_of(tables, t, point) & 31
    at += width
    while at < end:
        point, width = decode(source, at)
        kind = property_of(tables, t, point) & 31
        state = load_u8(tables, t.step + (state << 5 | kind))
        if state == _BOUNDARY:
            return at
        at += width
    return at


@njit
def _shortest_key(tables: Any, t: Any, source: Any, at: int, stop: int) -> int:
    """Replacement of the shortest prefix of source[at:stop] that is a key, or -1."""
    unit = load_u32(tables, t.units)
    node = (unit >> 10) << ((unit & 512) >> 6)
    while at < stop:
        byte = load_u8(source, at)
        if byte == 0:
            return -1
        node ^= byte
        if node >= t.num_units:
            return -1
        unit = load_u32(tables, t.units + (node << 2))
        if unit & (_VALUE | 255) != byte:
            return -1
        node ^= (unit >> 10) << ((unit & 512) >> 6)
        if unit & 256:
            return load_u32(tables, t.units + (node << 2)) & (_VALUE - 1)
        at += 1
    return -1


@njit
def write_char(
    tables: Any, t: Any, scratch: Any, source: Any, at: int, width: int, entry: int
) -> None:
    """Write one character that stands alone, as its entry says."""
    action = (entry >> 5) & 7
    if action == _SPACE:
        store_i64(scratch, _PENDING, SPACE_PENDING)
    elif action == _REPLACE:
        _write_replacement(tables, t, scratch, entry >> 8)
    elif action == _MARK:
        _write_mark(t, scratch)
    else:
        length = _open(scratch, np.int64(action == _HOLD))
        for k in range(width):
            store_u8(scratch, BUFFER_AT + length + k, load_u8(source, at + k))
        store_i64(scratch, _LENGTH, length + width)


@njit
def _open(scratch: Any, hold: int) -> int:
    """Start a word if a space is pending; return the buffer's length.

    hold: 1 when white space follows, which is stripped if it turns out to end the text (pipeline C)
    """
    length = load_i64(scratch, _LENGTH)
    if hold == 0:
        store_i64(scratch, _STRIP, -1)
    elif load_i64(scratch, _STRIP) < 0:
        store_i64(scratch, _STRIP, length)
    if load_i64(scratch, _PENDING) != NOT_PENDING:
        store_i64(scratch, _PENDING, NOT_PENDING)
        store_i64(scratch, _LAST_MARK, length)
        store_u8(scratch, BUFFER_AT + length, 32)
        length += 1
    return length


@njit
def _write_mark(t: Any, scratch: Any) -> None:
    """Write U+2581 from the text: it starts a word, alone if a space stood before it."""
    length = load_i64(scratch, _LENGTH)
    if load_i64(scratch, _PENDING) == SPACE_PENDING and t.pipeline != _B:
        store_u8(scratch, BUFFER_AT + length, 32)
        length += 1
    store_u8(scratch, BUFFER_AT + length, 32)
    store_i64(scratch, _LAST_MARK, length)
    store_i64(scratch, _LENGTH, length + 1)
    store_i64(scratch, _STRIP, -1)
    store_i64(scratch, _PENDING, NOT_PENDING)


@njit
def _write_replacement(tables: Any, t: Any, scratch: Any, at: int) -> None:
    """Write a recoded replacement: 32 = space, 1 = word mark, 2 = filler, 0 = end."""
    at += t.blob
    byte = load_u8(tables, at)
    while byte != 0:
        if byte == 32:
            store_i64(scratch, _PENDING, SPACE_PENDING)
        elif byte == 1:
            _write_mark(t, scratch)
        elif byte != 2:
            length = _open(scratch, _NO)
            store_u8(scratch, BUFFER_AT + length, byte)
            store_i64(scratch, _LENGTH, length + 1)
        at += 1
        byte = load_u8(tables, at)
