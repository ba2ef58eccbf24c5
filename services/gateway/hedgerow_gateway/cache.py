"""Rows that were computed before, in this process, up to a number of bytes."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Collection

import numpy as np

from hedgerow_shared.errors import HedgerowError
from hedgerow_shared.ragged import Row

_ENTRY_BYTES = 400
"""What a kept row costs beside its key and its numbers."""


class Cache:
    """Rows by key, the least recently used dropped first. Errors are not kept."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.bytes = 0
        self.counts: Counter[str] = Counter()
        self._kept: OrderedDict[bytes, tuple[Row, str, int]] = OrderedDict()

    def get(self, key: bytes, engines: Collection[str]) -> tuple[Row, str] | None:
        """(row, fingerprint) of an engine that is still served."""
        found = self._kept.get(key)
        if found is None or found[1] not in engines:
            self.counts["misses"] += 1
            return None
        self._kept.move_to_end(key)
        self.counts["hits"] += 1
        return found[0], found[1]

    def put(self, key: bytes, row: Row, fingerprint: str) -> None:
        if isinstance(row, HedgerowError):
            return
        # A copy: rows are views of a whole reply.
        own = tuple(np.array(array) for array in row)
        size = len(key) + sum(array.nbytes for array in own) + _ENTRY_BYTES
        if size > self.limit_bytes:
            return
        self._forget(key)
        self._kept[key] = (own, fingerprint, size)
        self.bytes += size
        while self.bytes > self.limit_bytes:
            self._forget(next(iter(self._kept)))

    def clear(self) -> None:
        self._kept.clear()
        self.bytes = 0

    def _forget(self, key: bytes) -> None:
        gone = self._kept.pop(key, None)
        if gone is not None:
            self.bytes -= gone[2]
