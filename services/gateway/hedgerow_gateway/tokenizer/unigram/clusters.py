"""Normalization of one grapheme cluster into the word buffer."""

from __future__ import annotations

from typing import Any

from numba import njit

from hedgerow_gateway.tokenizer.unigram import cells, header
from hedgerow_gateway.tokenizer.unigram.layout import (
    BUFFER_AT,
    NOT_PENDING,
    SPACE_PENDING,
    Action,
    Pipeline,
    Status,
)
from hedgerow_gateway.tokenizer.unigram.memory import (
    NO,
    int64,
    load_i64,
    load_u8,
    load_u32,
    store_i64,
    store_u8,
)

_CUT, _GROW = int(Status.CUT), int(Status.GROW)
_REPLACE, _SPACE = int(Action.REPLACE), int(Action.SPACE)
_MARK, _HOLD = int(Action.MARK), int(Action.HOLD)
_B = int(Pipeline.B)
_BOUNDARY = 0xFF
_SHORT = 6
_VALUE = 1 << 31


@njit
def decode(text: int) -> Any:
    """(code point, bytes) of the UTF-8 character at this address."""
    c = load_u8(text)
    if c < 0x80:
        return c, 1
    if c < 0xE0:
        return (c & 31) << 6 | load_u8(text + 1) & 63, 2
    low = (load_u8(text + 1) & 63) << 6 | load_u8(text + 2) & 63
    if c < 0xF0:
        return (c & 15) << 12 | low, 3
    return (c & 7) << 18 | low << 6 | load_u8(text + 3) & 63, 4


@njit
def property_of(tables: int, point: int) -> int:
    """The entry of PROPS for a code point."""
    page = load_u32(tables + load_i64(tables + header.PAGES) + ((point >> 7) << 2))
    at = (page << 7 | point & 127) << 2
    return load_u32(tables + load_i64(tables + header.PROPS) + at)


@njit
def step_from(tables: int, state: int, kind: int) -> int:
    """The automaton's next state, 0xFF at a boundary."""
    return load_u8(tables + load_i64(tables + header.STEP) + (state << 5 | kind))


@njit
def one_cluster(tables: int, scratch: int, text: int, end: int, more: int) -> int:
    """Normalize the cluster at `text`; return the address behind it, or minus a Status."""
    point, width = decode(text)
    entry = property_of(tables, point)
    after = text + width
    if after >= end:
        if more != 0:
            return -_CUT
    elif entry & 31 != 0 or load_u8(after) >= 128:
        following, _ = decode(after)
        kind = property_of(tables, following) & 31
        if step_from(tables, entry & 31, kind) != _BOUNDARY:
            return _long_cluster(tables, scratch, text, end, more)
    write_char(tables, scratch, text, width, entry)
    return after


@njit
def _long_cluster(tables: int, scratch: int, text: int, end: int, more: int) -> int:
    stop = _cluster_end(tables, text, end)
    if stop >= end and more != 0:
        return -_CUT
    if stop - text < _SHORT:
        found = _shortest_key(tables, text, stop)
        if found >= 0:
            _write_replacement(tables, scratch, found)
            return stop
    limit = load_i64(scratch + cells.CAPACITY) - load_i64(tables + header.MAX_GROWTH)
    while text < stop:
        if load_i64(scratch + cells.LENGTH) >= limit:
            return -_GROW
        point, width = decode(text)
        write_char(tables, scratch, text, width, property_of(tables, point))
        text += width
    return stop


@njit
def _cluster_end(tables: int, text: int, end: int) -> int:
    point, width = decode(text)
    state = property_of(tables, point) & 31
    text += width
    while text < end:
        point, width = decode(text)
        state = step_from(tables, state, property_of(tables, point) & 31)
        if state == _BOUNDARY:
            return text
        text += width
    return text


@njit
def _shortest_key(tables: int, text: int, stop: int) -> int:
    """Replacement of the shortest beginning of this text that is a key, or -1."""
    units = tables + load_i64(tables + header.UNITS)
    unit = load_u32(units)
    node = (unit >> 10) << ((unit & 512) >> 6)
    while text < stop:
        byte = load_u8(text)
        if byte == 0:
            return -1
        node ^= byte
        if node >= load_i64(tables + header.NUM_UNITS):
            return -1
        unit = load_u32(units + (node << 2))
        if unit & (_VALUE | 255) != byte:
            return -1
        node ^= (unit >> 10) << ((unit & 512) >> 6)
        if unit & 256 != 0:
            return load_u32(units + (node << 2)) & (_VALUE - 1)
        text += 1
    return -1


@njit
def write_char(tables: int, scratch: int, text: int, width: int, entry: int) -> None:
    """Write one character that stands alone, as its entry says."""
    action = (entry >> 5) & 7
    if action == _SPACE:
        store_i64(scratch + cells.PENDING, SPACE_PENDING)
    elif action == _REPLACE:
        _write_replacement(tables, scratch, entry >> 8)
    elif action == _MARK:
        _write_mark(tables, scratch)
    else:
        length = _open(scratch, int64(action == _HOLD))
        to = scratch + BUFFER_AT + length
        for k in range(width):
            store_u8(to + k, load_u8(text + k))
        store_i64(scratch + cells.LENGTH, length + width)


@njit
def _open(scratch: int, hold: int) -> int:
    """Start a word if a space is pending; return the buffer's length.

    hold: 1 when white space follows, which is stripped if it ends the text (pipeline C)
    """
    length = load_i64(scratch + cells.LENGTH)
    if hold == 0:
        store_i64(scratch + cells.STRIP, -1)
    elif load_i64(scratch + cells.STRIP) < 0:
        store_i64(scratch + cells.STRIP, length)
    if load_i64(scratch + cells.PENDING) != NOT_PENDING:
        store_i64(scratch + cells.PENDING, NOT_PENDING)
        store_i64(scratch + cells.LAST_MARK, length)
        store_u8(scratch + BUFFER_AT + length, 32)
        length += 1
    return length


@njit
def _write_mark(tables: int, scratch: int) -> None:
    """Write U+2581 from the text: it starts a word, alone if a space stood before it."""
    length = load_i64(scratch + cells.LENGTH)
    spaced = load_i64(scratch + cells.PENDING) == SPACE_PENDING
    if spaced and load_i64(tables + header.PIPELINE) != _B:
        store_u8(scratch + BUFFER_AT + length, 32)
        length += 1
    store_u8(scratch + BUFFER_AT + length, 32)
    store_i64(scratch + cells.LAST_MARK, length)
    store_i64(scratch + cells.LENGTH, length + 1)
    store_i64(scratch + cells.STRIP, -1)
    store_i64(scratch + cells.PENDING, NOT_PENDING)


@njit
def _write_replacement(tables: int, scratch: int, at: int) -> None:
    """Write a recoded replacement: 32 = space, 1 = word mark, 2 = filler, 0 = end."""
    text = tables + load_i64(tables + header.BLOB) + at
    byte = load_u8(text)
    while byte != 0:
        if byte == 32:
            store_i64(scratch + cells.PENDING, SPACE_PENDING)
        elif byte == 1:
            _write_mark(tables, scratch)
        elif byte != 2:
            length = _open(scratch, NO)
            store_u8(scratch + BUFFER_AT + length, byte)
            store_i64(scratch + cells.LENGTH, length + 1)
        text += 1
        byte = load_u8(text)
