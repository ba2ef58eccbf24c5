"""Build the double array of the pieces. Runs once per model and file version."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

_ONE = np.uint64(1)
_NO_PARENT = 0xFFFFFFFF


class Trie(NamedTuple):
    """base, parent: uint32 [num_slots]; leaf: int32 [num_slots], index of the key or -1."""

    base: npt.NDArray[np.uint32]
    parent: npt.NDArray[np.uint32]
    leaf: npt.NDArray[np.int32]


def build_trie(keys: list[bytes]) -> Trie:
    """Double array of sorted, distinct, non-empty keys. Root is slot 0."""
    text = np.frombuffer(b"".join(keys), np.uint8)
    bounds = np.zeros(len(keys) + 1, np.int64)
    np.cumsum([len(key) for key in keys], out=bounds[1:])
    slots = 2 * text.shape[0] + 1024
    base, parent, leaf, used = _build(text, bounds, slots)
    return Trie(base[:used], parent[:used], leaf[:used])


@njit(nogil=True)
def _build(text: Any, bounds: Any, slots: int) -> Any:
    """Level by level. Free places for a node's children are sought 64 at a time: OR together
    the occupancy words shifted by each child's byte; a zero bit is a base that fits them all."""
    base = np.zeros(slots, np.uint32)
    parent = np.full(slots, _NO_PARENT, np.uint32)
    leaf = np.full(slots, -1, np.int32)
    taken = np.zeros(slots // 64 + 16, np.uint64)
    queue = np.empty((text.shape[0] + 2, 4), np.int64)
    queue[0, 0], queue[0, 1], queue[0, 2], queue[0, 3] = 0, bounds.shape[0] - 1, 0, 0
    parent[0], taken[0] = _NO_PARENT - 1, _ONE
    labels, starts, stops = (
        np.empty(256, np.int64),
        np.empty(256, np.int64),
        np.empty(256, np.int64),
    )
    search_from = np.zeros(257, np.int64)
    head, tail, used = 0, 1, 1
    while head < tail:
        low, high, depth, slot = queue[head, 0], queue[head, 1], queue[head, 2], queue[head, 3]
        head += 1
        if bounds[low + 1] - bounds[low] == depth:
            leaf[slot] = low
            low += 1
        if low >= high:
            continue
        count, at = 0, low
        while at < high:
            byte, last = text[bounds[at] + depth], at
            while last < high and text[bounds[last] + depth] == byte:
                last += 1
            labels[count], starts[count], stops[count] = byte, at, last
            count += 1
            at = last
        found = _free_base(taken, labels, count, search_from)
        base[slot] = found
        for k in range(count):
            child = found + labels[k]
            parent[child] = slot
            taken[child >> 6] |= _ONE << np.uint64(child & 63)
            used = max(used, child + 1)
            queue[tail, 0], queue[tail, 1] = starts[k], stops[k]
            queue[tail, 2], queue[tail, 3] = depth + 1, child
            tail += 1
    return base, parent, leaf, used + 256


@njit
def _free_base(taken: Any, labels: Any, count: int, search_from: Any) -> int:
    full, word, tries = ~np.uint64(0), search_from[count], 0
    while True:
        blocked = _ONE if word == 0 else np.uint64(0)
        for k in range(count):
            place = word * 64 + labels[k]
            shift = np.uint64(place & 63)
            blocked |= taken[place >> 6] >> shift
            if shift:
                blocked |= taken[(place >> 6) + 1] << (np.uint64(64) - shift)
            if blocked == full:
                break
        if blocked != full:
            break
        word += 1
        tries += 1
    if tries > 8:
        search_from[count] = word - 4
    bit = 0
    while (blocked >> np.uint64(bit)) & _ONE:
        bit += 1
    return word * 64 + bit
