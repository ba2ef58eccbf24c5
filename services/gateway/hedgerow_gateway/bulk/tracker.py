"""Reads the counts of jobs from the stream of results, as far as they are not known yet."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections import OrderedDict
from dataclasses import dataclass, field

from hedgerow_gateway.bulk.progress import Progress, Rate, decode, encode, kind_of
from hedgerow_shared import subjects
from hedgerow_shared.bus.jetstream import JetStream
from hedgerow_shared.bus.jetstream_kv import Bucket, Entry, SequenceConflictError
from hedgerow_shared.bus.jetstream_pull import Delivery, Pull
from hedgerow_shared.errors import BadChunkError, HedgerowError, StorageError
from hedgerow_shared.jobs import tally_of

_log = logging.getLogger("hedgerow.bulk")

_KEPT_JOBS = 256
_BATCH = 2000
_CHECKPOINT_EVERY = 1000
_IDLE_NS = 10_000_000_000


@dataclass(slots=True)
class _Followed:
    """progress: what was counted; revision, saved: of the checkpoint, and how far it reaches."""

    progress: Progress = field(default_factory=Progress)
    revision: int = 0
    saved: int = 0
    rate: Rate = field(default_factory=Rate)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Tracker:
    """Progress of the jobs somebody asks about; the 256 asked about last stay in memory."""

    def __init__(self, js: JetStream, bucket: Bucket, gateway_id: str) -> None:
        self._js, self._bucket = js, bucket
        self._names = (f"progress-{gateway_id}-{n:x}" for n in itertools.count(1))
        self._jobs: OrderedDict[str, _Followed] = OrderedDict()

    async def refresh(self, job: str) -> tuple[Progress, Rate]:
        """Count what is new. Raises StorageError."""
        followed = self._follow(job)
        async with followed.lock:
            await self._count(job, followed)
            if followed.progress.upto - followed.saved >= _CHECKPOINT_EVERY:
                await self._save(job, followed)
        return followed.progress, followed.rate

    async def save(self, job: str) -> Progress:
        """Count what is new and keep it in the bucket: the messages themselves may go then.

        Raises StorageError when it could not be kept.
        """
        followed = self._follow(job)
        async with followed.lock:
            await self._count(job, followed)
            if followed.progress.upto > followed.saved and not await self._save(job, followed):
                raise StorageError(f"another gateway just counted job {job}: ask again")
        return followed.progress

    def _follow(self, job: str) -> _Followed:
        followed = self._jobs.setdefault(job, _Followed())
        self._jobs.move_to_end(job)
        while len(self._jobs) > _KEPT_JOBS:
            self._jobs.popitem(last=False)
        return followed

    async def _count(self, job: str, followed: _Followed) -> None:
        """Read on from what is known. Another gateway may keep a checkpoint and let messages go
        while we read: then we begin again from its checkpoint."""
        entry = await self._bucket.get(_key(job))
        kept = _progress(entry)
        if kept.upto > followed.progress.upto:
            followed.progress = kept
        while True:
            followed.revision, followed.saved = entry.revision if entry else 0, kept.upto
            await self._read(job, followed)
            entry = await self._bucket.get(_key(job))
            if (entry.revision if entry else 0) == followed.revision:
                return
            followed.progress = kept = _progress(entry)

    async def _read(self, job: str, followed: _Followed) -> None:
        stream, name = subjects.STREAM_RESULT, next(self._names)
        filter_subject = f"hedgerow.result.{job}.>"
        config = {
            "name": name,
            "filter_subject": filter_subject,
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": followed.progress.upto + 1,
            "ack_policy": "none",
            "headers_only": True,
            "mem_storage": True,
            "inactive_threshold": _IDLE_NS,
        }
        made = await self._js.call(
            f"CONSUMER.CREATE.{stream}.{name}.{filter_subject}",
            {"stream_name": stream, "action": "create", "config": config},
        )
        try:
            if made.get("num_pending"):
                await self._pull(stream, name, followed)
        finally:
            with contextlib.suppress(HedgerowError):
                await self._js.call(f"CONSUMER.DELETE.{stream}.{name}")

    async def _pull(self, stream: str, name: str, followed: _Followed) -> None:
        pending = 1

        def take(delivery: Delivery) -> None:
            nonlocal pending
            pending = delivery.pending
            _add(followed, delivery)

        pull = Pull(self._js.bus, stream, name, take)
        await pull.start()
        try:
            while pending:
                before = followed.progress.upto
                await pull.fetch(_BATCH)
                if followed.progress.upto == before and pending:
                    raise StorageError(f"stream {stream} stopped in the middle of a count")
        finally:
            await pull.stop()

    async def _save(self, job: str, followed: _Followed) -> bool:
        """Keep a checkpoint; False when another gateway just kept one."""
        try:
            followed.revision = await self._bucket.put(
                _key(job), encode(followed.progress), followed.revision
            )
        except SequenceConflictError:
            return False
        followed.saved = followed.progress.upto
        return True


def _progress(entry: Entry | None) -> Progress:
    return (decode(entry.value) if entry else None) or Progress()


def _add(followed: _Followed, delivery: Delivery) -> None:
    try:
        counts = tally_of(delivery.headers)
    except BadChunkError as error:
        _log.warning("bulk: %s: not counted: %s", delivery.subject, error.message)
        followed.progress.upto = max(followed.progress.upto, delivery.seq)
        return
    new = followed.progress.add(delivery.subject, delivery.seq, delivery.time_ns, counts)
    if new and kind_of(delivery.subject) == "chunk":
        followed.rate.add(delivery.time_ns, counts.rows)


def _key(job: str) -> str:
    return f"progress.{job}"
