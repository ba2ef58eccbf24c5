"""The double array inside a `precompiled_charsmap`: read it, and write tiny ones for probing.

A unit (uint32) holds a label in bits 0-7, "has a value" in bit 8, and the way to its children:
`offset = (unit >> 10) << ((unit & 512) >> 6)`; child `c` of node `p` lies at `p ^ offset ^ c`
and is real only if its label is `c`. A value unit lies at `p ^ offset` (label 0, bit 31 set).
The bytes are: uint32 length of the array, the array, then NUL-terminated replacements which the
values index. Source: darts-clone, as used by sentencepiece.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Units = npt.NDArray[np.uint32]
_BLOCK = 256
_HAS_VALUE = 1 << 8
_FAR = 1 << 9
_VALUE = 1 << 31
_MAX_NEAR = 1 << 21


@dataclass(frozen=True, slots=True)
class Charsmap:
    """A parsed charsmap. units: uint32 [n]; blob: NUL-terminated UTF-8 replacements."""

    units: Units
    blob: bytes


def parse(raw: bytes) -> Charsmap:
    """Split the bytes of a charsmap. Raises ValueError when they do not fit together."""
    if len(raw) < 8:
        raise ValueError("too short")
    (size,) = struct.unpack_from("<I", raw)
    if size % 4 or size < 4 or 4 + size > len(raw):
        raise ValueError(f"says its array has {size} bytes, but {len(raw) - 4} follow")
    units = np.frombuffer(raw, "<u4", size // 4, 4).astype(np.uint32)
    return Charsmap(units, raw[4 + size :])


def offsets(units: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Way to the children of each unit (int64, any shape)."""
    return (units >> 10) << ((units & _FAR) >> 6)


def char_values(charsmap: Charsmap) -> npt.NDArray[np.int64]:
    """int64 [0x110000]: where in the blob the replacement of each single character starts.

    -1 where the character alone is no key. Surrogates are -1.
    """
    units = charsmap.units.astype(np.int64)
    found = np.full(0x110000, -1, np.int64)
    for first, last, width in ((1, 0x80, 1), (0x80, 0x800, 2), (0x800, 1 << 16, 3),
                               (1 << 16, 0x110000, 4)):  # fmt: skip
        points = np.arange(first, last, dtype=np.int64)
        points = points[(points < 0xD800) | (points > 0xDFFF)]
        node = np.full(points.shape, offsets(units[:1])[0], np.int64)
        alive = np.ones(points.shape, np.bool_)
        unit = np.zeros(points.shape, np.int64)
        for byte in _utf8(points, width):
            node = np.where(alive, node ^ byte, 0)
            alive &= node < units.shape[0]
            unit = units[np.where(alive, node, 0)]
            alive &= (unit & (_VALUE | 255)) == byte
            node = np.where(alive, node ^ offsets(unit), 0)
        alive &= (unit & _HAS_VALUE) != 0
        found[points[alive]] = units[node[alive]] & (_VALUE - 1)
    return found


def build(pairs: Mapping[str, str]) -> bytes:
    """A charsmap for a handful of keys, as the tokenizers library takes it."""
    children: list[dict[int, int]] = [{}]
    value: dict[int, int] = {}
    blob = b""
    for key, replacement in pairs.items():
        node = 0
        for byte in key.encode():
            if byte not in children[node]:
                children[node][byte] = len(children)
                children.append({})
            node = children[node][byte]
        value[node] = len(blob)
        blob += replacement.encode() + b"\0"
    units = np.zeros((len(children) + 1) * _BLOCK, np.uint32)
    at = {0: 0}
    for node, below in enumerate(children):
        base = (node + 1) * _BLOCK
        way = at[node] ^ base
        assert way < _MAX_NEAR, "too many keys for a probe"
        units[at[node]] |= np.uint32(way << 10 | (_HAS_VALUE if node in value else 0))
        if node in value:
            units[base] = np.uint32(_VALUE | value[node])
        for byte, child in below.items():
            at[child] = base ^ byte
            units[base ^ byte] = byte
    return struct.pack("<I", units.nbytes) + units.tobytes() + blob


def _utf8(points: npt.NDArray[np.int64], width: int) -> list[npt.NDArray[np.int64]]:
    """The `width` UTF-8 bytes of each code point, first byte first."""
    if width == 1:
        return [points]
    lead = {2: 0xC0, 3: 0xE0, 4: 0xF0}[width]
    shifts = range(6 * (width - 1), -1, -6)
    parts = [points >> shift for shift in shifts]
    return [lead | parts[0], *(0x80 | (part & 0x3F) for part in parts[1:])]
