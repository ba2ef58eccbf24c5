"""A key-value bucket of JetStream, as `nats kv` sees it: values change by compare and set."""

from __future__ import annotations

from dataclasses import dataclass

from hedgerow_shared.bus.jetstream import JetStream, SequenceConflictError, Stored

__all__ = ["Bucket", "Entry", "SequenceConflictError", "stream_of"]

_OPERATION = "KV-Operation"


@dataclass(frozen=True, slots=True)
class Entry:
    """A value and the revision a change of it must name."""

    value: bytes
    revision: int


def stream_of(bucket: str) -> str:
    """The stream behind a bucket."""
    return f"KV_{bucket}"


class Bucket:
    """One bucket. Keys are subject tokens joined by dots."""

    def __init__(self, js: JetStream, bucket: str) -> None:
        self._js, self._bucket = js, bucket
        self._stream = stream_of(bucket)

    async def get(self, key: str) -> Entry | None:
        """The value, as the leader knows it; None when there is none."""
        return _entry(await self._js.last(self._stream, self.subject(key)))

    async def get_direct(self, key: str) -> Entry | None:
        """The value from any replica: it may be old, which `put` then notices."""
        return _entry(await self._js.last_direct(self._stream, self.subject(key)))

    async def put(self, key: str, value: bytes, revision: int = 0) -> int:
        """Store a value over the one of `revision` (0: there is none yet); returns its own.

        Raises SequenceConflictError when somebody else was first, StorageError.
        """
        return (await self._js.publish(self.subject(key), value, expect_last=revision)).seq

    def subject(self, key: str) -> str:
        return f"$KV.{self._bucket}.{key}"


def _entry(stored: Stored | None) -> Entry | None:
    if stored is None or _OPERATION in stored.headers:
        return None
    return Entry(stored.data, stored.seq)
