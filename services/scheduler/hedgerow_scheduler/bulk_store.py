"""Bulk chunks that a worker holds, and their results on the way into the stream."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from hedgerow_scheduler.intake import Served
from hedgerow_shared import subjects
from hedgerow_shared.bus.jetstream import JetStream, PubAck, SequenceConflictError
from hedgerow_shared.bus.jetstream_pull import Delivery
from hedgerow_shared.errors import HedgerowError, TooLargeError
from hedgerow_shared.jobs import BulkChunk, BulkResult, Tally, encode, tally
from hedgerow_shared.ragged import Row
from hedgerow_shared.wire import Chunk, ChunkReply, encode_reply

_STORE_S = 5.0
_FIRST_RETRY_S, _LAST_RETRY_S = 0.1, 5.0
_MAX_REASON = 500
_REASON_BYTES = 4 * _MAX_REASON + 64

_log = logging.getLogger("hedgerow.bulk")


@dataclass(slots=True, eq=False)
class Item:
    """A bulk chunk from its delivery to its acknowledgement.

    served: the model it is for; None where this worker serves another version of it
    told_s: when the server last heard that it is being worked on
    """

    delivery: Delivery
    job: BulkChunk
    chunk: Chunk
    served: Served | None
    told_s: float

    @property
    def num_seqs(self) -> int:
        return len(self.job.ids)

    @property
    def num_tokens(self) -> int:
        return self.chunk.batch.num_tokens

    def reply(self, worker: str, rows: list[Row]) -> ChunkReply:
        """An answer that this worker puts together itself."""
        fingerprint = "" if self.served is None else self.served.engine.fingerprint
        return ChunkReply(self.chunk.id, worker, rows, fingerprint=fingerprint)


class Store:
    """Puts results where jobs are read from. Every method returns once it is stored, however
    often that takes: while the stream is full or away, this worker keeps what it has."""

    def __init__(self, js: JetStream) -> None:
        self._js = js
        self._limit_bytes = js.bus.max_message_bytes - 1024

    def pack(self, item: Item, reply: ChunkReply) -> tuple[bytes, Tally]:
        """The result as it is stored. Reads the rows at once, which may be views."""
        data = self._encode(item, reply)
        if len(data) > self._limit_bytes:
            error = TooLargeError(
                f"the result takes {len(data)} bytes and the bus {self._limit_bytes}: ask for "
                "fewer dimensions or a smaller dtype"
            )
            reply = replace(reply, rows=[error] * item.num_seqs)
            data = self._encode(item, reply)
        return data, tally(reply, item.num_tokens)

    async def result(self, item: Item, data: bytes, counts: Tally) -> None:
        """Store one result; the second one of a chunk is not kept, whoever made it."""
        job = item.job
        await insist(
            lambda: self._js.publish(
                subjects.result(job.job, job.chunk),
                data,
                msg_id=f"{job.job}.{job.chunk}",
                expect_last=0,
                headers=counts.headers,
                timeout_s=_STORE_S,
            )
        )

    async def dead(self, subject: str, data: bytes, reason: str) -> None:
        """Store a dead letter: the chunk as it was, with the reason. Of one that fills a message
        by itself only the beginning: header and reason need room too."""
        data = data[: self._limit_bytes - _REASON_BYTES]
        headers = {subjects.HEADER_REASON: reason[:_MAX_REASON]}
        await insist(
            lambda: self._js.publish(
                subject, data, expect_last=0, headers=headers, timeout_s=_STORE_S
            )
        )

    async def keep(self, item: Item, reason: str) -> None:
        """Store a chunk that was given up as a dead letter."""
        job = item.job
        _log.error("bulk: job %s chunk %s: %s", job.job, job.chunk, reason)
        subject = subjects.dead(item.chunk.model, job.job, job.chunk)
        await self.dead(subject, item.delivery.data, reason)

    def _encode(self, item: Item, reply: ChunkReply) -> bytes:
        job, bounds = item.job, item.chunk.batch.cu_seqlens.tolist()
        used = np.array([stop - start for start, stop in pairwise(bounds)], "<i4")
        return encode(
            BulkResult(
                job=job.job,
                chunk=job.chunk,
                ids=job.ids,
                seen=job.seen,
                used=used.tobytes(),
                body=encode_reply(reply),
            )
        )


async def insist(publish: Callable[[], Awaitable[PubAck]]) -> PubAck | None:
    """Try until it is stored, or until it turns out that it was (None)."""
    delay_s = _FIRST_RETRY_S
    while True:
        try:
            return await publish()
        except SequenceConflictError:
            return None
        except HedgerowError as error:
            level = logging.WARNING if delay_s == _FIRST_RETRY_S else logging.DEBUG
            _log.log(level, "bulk: not stored, trying again: %s", error.message)
        await asyncio.sleep(delay_s)
        delay_s = min(2 * delay_s, _LAST_RETRY_S)
