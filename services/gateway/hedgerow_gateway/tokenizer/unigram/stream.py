"""One pass over UTF-8 text: normalize cluster by cluster, cut into words, emit ids."""

from __future__ import annotations

import numpy as np
from numba import njit

from hedgerow_gateway.tokenizer.unigram import cells, header
from hedgerow_gateway.tokenizer.unigram.clusters import one_cluster, property_of
from hedgerow_gateway.tokenizer.unigram.keys import key_of
from hedgerow_gateway.tokenizer.unigram.layout import (
    BUFFER_AT,
    DRAIN_BYTES,
    LONG_BYTES,
    MAX_KEY_BYTES,
    NOT_PENDING,
    SPACE_PENDING,
    START_PENDING,
    Action,
    Pipeline,
    Status,
)
from hedgerow_gateway.tokenizer.unigram.memory import (
    NO,
    YES,
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
    emit_known,
    emit_unknown,
    emit_word,
    work_off,
)

_DONE, _FULL = int(Status.DONE), int(Status.FULL)
_CUT, _GROW = int(Status.CUT), int(Status.GROW)
_SPACE = int(Action.SPACE)
_A = int(Pipeline.A)
_HIGH = np.uint64(0x8080808080808080)
_ONES = np.uint64(0x0101010101010101)
_BELOW_33 = np.uint64(0x2121212121212121)
_RUN = 64


@njit
def visible_end(text: int, end: int, safe: int) -> int:
    """Address of the first byte that is not "!" to "~", looking no further than ~64 bytes."""
    stop = min(end, text + _RUN)
    while text < stop and text <= safe:
        word = load_u64(text)
        # A byte's high bit: above ASCII, or below 33, or 127. Wrong ones stand behind a right one.
        odd = (word | ((word - _BELOW_33) & ~word) | (word + _ONES)) & _HIGH
        if odd != 0:
            return min(text + (trailing_zeros(odd) >> 3), end)
        text += 8
    while text < stop:
        byte = load_u8(text)
        if byte < 33 or byte > 126:
            return text
        text += 1
    return min(text, end)


@njit
def ends_word(tables: int, text: int, end: int, more: int) -> bool:
    """True when a word of visible ASCII that stops before `text` certainly ends there."""
    if text >= end:
        return more == 0
    byte = load_u8(text)
    if byte >= 128 or (property_of(tables, byte) >> 5) & 7 != _SPACE:
        return False
    if byte != 32:
        return True  # a control: no cluster reaches across it
    return more == 0 if text + 1 >= end else load_u8(text + 1) < 128


@njit
def visible_word(tables: int, scratch: int, text: int, stop: int, safe: int) -> None:
    """Emit a whole word of visible ASCII straight from the source."""
    size, fits = stop - text, stop - text <= MAX_KEY_BYTES and text <= safe
    k0, k1, k2 = np.uint64(0), np.uint64(0), np.uint64(0)
    store_i64(scratch + cells.LAST_UNK, 0)
    if fits:
        k0, k1, k2 = key_of(text, size, YES)
        if emit_known(tables, scratch, k0, k1, k2):
            return
    store_u8(scratch + BUFFER_AT, 32)
    shift = scratch + BUFFER_AT + 1 - text
    while text < stop and text <= safe:
        store_u64(shift + text, load_u64(text))
        text += 8
    while text < stop:
        store_u8(shift + text, load_u8(text))
        text += 1
    if fits:
        emit_unknown(tables, scratch, NO, size + 1, k0, k1, k2)
    else:
        emit_word(tables, scratch, NO, size + 1)


@njit
def _finish(tables: int, scratch: int) -> int:
    strip = load_i64(scratch + cells.STRIP)
    if strip >= 0:
        store_i64(scratch + cells.LENGTH, strip)
    elif (
        load_i64(tables + header.PIPELINE) == _A
        and load_i64(scratch + cells.PENDING) == SPACE_PENDING
    ):
        length = load_i64(scratch + cells.LENGTH)
        store_u8(scratch + BUFFER_AT + length, 32)
        store_i64(scratch + cells.LENGTH, length + 1)
    drain(tables, scratch, YES)
    full = load_i64(scratch + cells.COUNT) >= load_i64(scratch + cells.ROOM)
    return _FULL if full else _DONE


@njit
def _reset(scratch: int, count: int) -> None:
    store_i64(scratch + cells.COUNT, count)
    store_i64(scratch + cells.LENGTH, 0)
    store_i64(scratch + cells.PENDING, START_PENDING)
    store_i64(scratch + cells.STRIP, -1)
    store_i64(scratch + cells.LAST_MARK, 0)
    store_i64(scratch + cells.CONTINUED, 0)
    store_i64(scratch + cells.LAST_UNK, 0)
    store_i64(scratch + cells.SOFT, DRAIN_BYTES)
    store_i64(scratch + cells.LONG, LONG_BYTES)


@njit
def _make_room(tables: int, scratch: int) -> bool:
    """Shorten the buffer. False when one word fills it and needs a larger one."""
    if load_i64(scratch + cells.STRIP) < 0:
        drain(tables, scratch, NO)
        if load_i64(scratch + cells.LENGTH) >= load_i64(scratch + cells.LONG):
            work_off(tables, scratch)
    length = load_i64(scratch + cells.LENGTH)
    store_i64(scratch + cells.SOFT, length + DRAIN_BYTES)
    needed = length + DRAIN_BYTES + load_i64(tables + header.MAX_GROWTH)
    return needed < load_i64(scratch + cells.CAPACITY)


@njit
def encode_text(
    tables: int, scratch: int, count: int, text: int, end: int, safe: int, more: int
) -> int:
    """Encode the UTF-8 at text..end behind the first `count` ids; returns a Status.

    cells.OUT and cells.ROOM say where the ids go; cells.COUNT is how many are there in the end.
    safe: last address from which 24 bytes can be read
    more: 1 when the text goes on behind `end`; then only words that no further text could
        change are emitted
    A long word is worked off in parts, so that the buffer is rarely larger than 4 KB.
    """
    _reset(scratch, count)
    room = load_i64(scratch + cells.ROOM)
    plain = load_i64(tables + header.PLAIN_ASCII) != 0
    while text < end:
        byte = load_u8(text)
        if plain and 32 < byte < 127 and load_i64(scratch + cells.PENDING) != NOT_PENDING:
            stop = visible_end(text, end, safe)
            if ends_word(tables, stop, end, more):
                if load_i64(scratch + cells.LENGTH) > 0:
                    drain(tables, scratch, YES)
                store_i64(scratch + cells.STRIP, -1)
                visible_word(tables, scratch, text, stop, safe)
                text = stop
                store_i64(scratch + cells.PENDING, SPACE_PENDING if text < end else NOT_PENDING)
                if text < end and load_u8(text) == 32:
                    text += 1
                if load_i64(scratch + cells.COUNT) >= room:
                    return _FULL
                continue
        text = one_cluster(tables, scratch, text, end, more)
        if text < 0:
            return -text
        if load_i64(scratch + cells.LENGTH) >= load_i64(scratch + cells.SOFT):
            if not _make_room(tables, scratch):
                return _GROW
            if load_i64(scratch + cells.COUNT) >= room:
                return _FULL
    if more != 0:
        return _CUT
    return _finish(tables, scratch)
