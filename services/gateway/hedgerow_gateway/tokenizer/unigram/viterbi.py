"""The best split of one word, exactly as the `tokenizers` library finds it.

Scores are summed in float64 from the word's start; a candidate replaces only when strictly
greater; starts ascend and pieces of one start come shortest first; UNK is offered only where no
piece is exactly the one character, and neighbouring UNKs become one id.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from hedgerow_gateway.tokenizer.unigram import cells, header
from hedgerow_gateway.tokenizer.unigram.layout import BUFFER_AT, PADDING, RING, RING_AT, UNK_NODE
from hedgerow_gateway.tokenizer.unigram.memory import (
    load_f64,
    load_i64,
    load_u8,
    load_u32,
    store_f64,
    store_i64,
    store_u32,
)

_NONE = -np.inf
_RING_MASK = RING - 1
# Two sums closer than this may be ordered differently when the same pieces are added to another
# start: float64 sums of a word of 4 KB, whose scores end above -1e6, are off by less than 1e-6.
CLOSE = 1e-5


@njit
def steps_of(scratch: int) -> int:
    """Address of the steps: uint32 per buffer position, node << 7 | bytes of the piece."""
    return scratch + BUFFER_AT + load_i64(scratch + cells.CAPACITY) + PADDING


@njit
def char_bytes(first: int) -> int:
    """Length of the UTF-8 character that starts with this byte."""
    if first < 0x80:
        return 1
    if first < 0xE0:
        return 2
    return 3 if first < 0xF0 else 4


@njit
def best_path(
    tables: int, scratch: int, start: int, stop: int, carry: float, last_split: int
) -> Any:
    """Fill the steps of buffer[start:stop], whose score starts at `carry`.

    Returns (close, split, split_score): `close` says that two sums were nearly equal somewhere;
    `split` is the last position <= last_split, relative to start, that no piece spans.
    """
    text, steps = scratch + BUFFER_AT + start, steps_of(scratch) + (start << 2)
    ring = scratch + RING_AT
    nodes = tables + load_i64(tables + header.NODES)
    root_base = load_i64(tables + header.ROOT_BASE)
    unk_score = load_f64(tables + header.UNK_SCORE)
    size = stop - start
    store_f64(ring, carry)
    close, reach, split, split_score, x = False, 0, 0, carry, 0
    while x < size:
        width = char_bytes(load_u8(text + x))
        cell = ring + ((x & _RING_MASK) << 3)
        here = load_f64(cell)
        store_f64(cell, _NONE)
        if reach <= x and x <= last_split:
            split, split_score = x, here
        node, base, y, single = 0, root_base, x, False
        while y < size:
            child = base + load_u8(text + y)
            where = nodes + (child << 4)
            if load_u32(where + 4) != node:
                break
            node = child
            base = load_u32(where)
            score = load_f64(where + 8)
            y += 1
            if score == _NONE:
                continue
            cell = ring + ((y & _RING_MASK) << 3)
            total = here + score
            gain = total - load_f64(cell)
            if gain > 0.0:
                store_f64(cell, total)
                store_u32(steps + (y << 2), node << 7 | (y - x))
            if -CLOSE < gain < CLOSE:
                close = True
            reach = max(reach, y)
            if y - x == width:
                single = True
        if not single:
            y = x + width
            cell = ring + ((y & _RING_MASK) << 3)
            total = here + unk_score
            gain = total - load_f64(cell)
            if gain > 0.0:
                store_f64(cell, total)
                store_u32(steps + (y << 2), UNK_NODE << 7 | width)
            if -CLOSE < gain < CLOSE:
                close = True
            reach = max(reach, y)
        x += width
    store_f64(ring + ((x & _RING_MASK) << 3), _NONE)
    return close, split, split_score


@njit
def emit_path(tables: int, scratch: int, start: int, stop: int) -> None:
    """Write the ids of the best split of buffer[start:stop]; those that do not fit are dropped.

    An UNK at the start merges with an UNK emitted last for the same word.
    """
    steps = steps_of(scratch)
    at, total, after_unk = stop, 0, False
    while at > start:
        step = load_u32(steps + (at << 2))
        unk = step >> 7 == UNK_NODE
        if not (unk and after_unk):
            total += 1
        after_unk = unk
        at -= step & 127
    if after_unk and load_i64(scratch + cells.LAST_UNK) != 0:
        total -= 1
    ids = tables + load_i64(tables + header.IDS)
    unk_id = load_i64(tables + header.UNK_ID)
    out, room = load_i64(scratch + cells.OUT), load_i64(scratch + cells.ROOM)
    count = load_i64(scratch + cells.COUNT)
    at, k, after_unk = stop, count + total, False
    store_i64(scratch + cells.COUNT, min(k, room))
    while at > start:
        step = load_u32(steps + (at << 2))
        node = step >> 7
        unk = node == UNK_NODE
        if at == stop:
            store_i64(scratch + cells.LAST_UNK, 1 if unk else 0)
        if not (unk and after_unk):
            k -= 1
            if count <= k < room:
                store_u32(out + (k << 2), unk_id if unk else load_u32(ids + (node << 2)))
        after_unk = unk
        at -= step & 127
