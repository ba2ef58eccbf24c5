"""Memory that programs read and write by address: aligned, in huge pages where Linux gives them.

Scattered weights cost translation misses after every idle gap; one mapping for all of a model's
weights, advised as huge, costs one line.
"""

from __future__ import annotations

import contextlib
import mmap
from typing import Any

import numpy as np
import numpy.typing as npt

LINE = 64

Bytes = npt.NDArray[Any]
"""An array whose memory a program reads or writes."""


def padded(num_bytes: int) -> int:
    """Rounded up to whole cache lines."""
    return -(-num_bytes // LINE) * LINE


class Memory:
    """A block of zeroed memory, handed out piece by piece; pieces begin on cache lines."""

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = padded(num_bytes)
        self._map = _map(max(self.num_bytes, mmap.PAGESIZE))
        self._bytes: npt.NDArray[np.uint8] = np.frombuffer(self._map, np.uint8)
        self._used = 0

    def take(self, num_bytes: int) -> npt.NDArray[np.uint8]:
        """The next piece, as bytes. It keeps the whole block alive."""
        begin, end = self._used, self._used + num_bytes
        assert end <= self.num_bytes, (end, self.num_bytes)
        self._used = padded(end)
        return self._bytes[begin:end]

    def array(self, shape: tuple[int, ...], dtype: Any) -> npt.NDArray[Any]:
        kind = np.dtype(dtype)
        return self.take(int(np.prod(shape)) * kind.itemsize).view(kind).reshape(shape)


def address(array: npt.NDArray[Any]) -> int:
    # `array.ctypes.data` says the same four times slower.
    return array.__array_interface__["data"][0]


def _map(num_bytes: int) -> mmap.mmap:
    """Private, because Linux gives no huge pages to shared memory."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return mmap.mmap(-1, num_bytes)
    mapped = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel built without them
        mapped.madvise(mmap.MADV_HUGEPAGE)
    return mapped
