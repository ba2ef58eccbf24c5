"""A short run of bytes as three numbers, and their hash: how words are looked up.

Tables are filled and read through the same two functions, so they cannot disagree.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from hedgerow_gateway.tokenizer.unigram.memory import load_u64

_BIT = np.uint64(1)
_MIX0 = np.uint64(0x9E3779B97F4A7C15)
_MIX1 = np.uint64(0xC2B2AE3D27D4EB4F)
_MIX2 = np.uint64(0x165667B19E3779F9)
_HALF = np.uint64(32)
_FIRST = 64
_SIZE_SHIFT = np.uint64(56)


@njit
def low_bytes(word: Any, count: int) -> Any:
    """The lowest `count` bytes of a uint64."""
    if count >= 8:
        return word
    return word & ((_BIT << np.uint64(8 * count)) - _BIT)


@njit
def key_of(text: int, size: int, first: int) -> Any:
    """Three uint64 that name `size` <= 23 bytes; reads up to 24 bytes.

    first: 1 when the bytes follow a word mark, which is not part of them
    """
    k0, k1, k2 = low_bytes(load_u64(text), size), np.uint64(0), np.uint64(0)
    if size > 8:
        k1 = low_bytes(load_u64(text + 8), size - 8)
        if size > 16:
            k2 = low_bytes(load_u64(text + 16), size - 16)
    return k0, k1, k2 | np.uint64(size + first * _FIRST) << _SIZE_SHIFT


@njit
def hash_of(k0: Any, k1: Any, k2: Any) -> Any:
    """A uint64 whose high and low bits are both well mixed."""
    mixed = (k0 ^ (k1 * _MIX1) ^ (k2 * _MIX2)) * _MIX0
    return (mixed ^ (mixed >> _HALF)) * _MIX1
