"""What a chunk is while the worker has it, and its one reply."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TypeAlias

import numpy as np

from hedgerow_scheduler.packer import Waiting, costs_of
from hedgerow_shared.errors import HedgerowError, RetryableError, TooLargeError
from hedgerow_shared.ragged import RaggedBatch, Row
from hedgerow_shared.wire import Chunk, ChunkReply, encode_reply

_log = logging.getLogger("hedgerow.worker")

Deliver: TypeAlias = Callable[[ChunkReply], None]
"""Sends a reply to whoever owns the chunk. The rows may be views of the engine's buffers:
encode them before returning."""


@dataclass(slots=True, eq=False)
class Held(Waiting):
    """A chunk from its arrival until its reply, which leaves when its last row is settled.

    rows: one per sequence; None until settled
    compute_s: device time of the batches it took part in
    answered: its reply left; rows that settle later are dropped
    """

    id: str
    batch: RaggedBatch
    deliver: Deliver
    rows: list[Row | None]
    unsettled: int
    compute_s: float = 0.0
    answered: bool = False

    def settle(self, start: int, rows: list[Row]) -> bool:
        """Keep the rows from sequence `start` on; True when they were the last.

        Rows that must wait for others are copied: the engine's buffer is released before.
        """
        self.unsettled -= len(rows)
        last = self.unsettled == 0
        self.rows[start : start + len(rows)] = rows if last else [_own(row) for row in rows]
        return last


def hold(
    chunk: Chunk, deliver: Deliver, *, arrived_s: float, expires_s: float, quadratic: float
) -> Held:
    """A chunk that was accepted, ready for the packer."""
    bounds: list[int] = chunk.batch.cu_seqlens.tolist()
    seqlens = [stop - start for start, stop in pairwise(bounds)]
    costs = costs_of(seqlens, quadratic)
    count = len(seqlens)
    return Held(
        chunk.lane,
        chunk.model,
        seqlens,
        costs,
        arrived_s,
        expires_s,
        chunk.id,
        chunk.batch,
        deliver,
        [None] * count,
        count,
    )


def kept(reply: ChunkReply) -> ChunkReply:
    """The reply with rows of its own: the engine's buffer is released once it was sent."""
    return replace(reply, rows=[_own(row) for row in reply.rows]) if reply.rows else reply


def _own(row: Row) -> Row:
    return row if isinstance(row, HedgerowError) else tuple(np.array(a) for a in row)


@dataclass(slots=True)
class Replies:
    """Encodes replies and gives them to the bus, which keeps their order per subject.

    publish: raises HedgerowError when it cannot take a message
    limit_bytes: of one reply; the bus takes no more
    lost: replies the bus did not take (it is down and its buffer is full)
    """

    publish: Callable[[str, bytes], None]
    limit_bytes: int
    lost: int = field(default=0, init=False)

    def send(self, subject: str, reply: ChunkReply) -> None:
        """Send one reply, or the reason why it cannot be sent."""
        data = encode_reply(reply)
        if len(data) > self.limit_bytes:
            data = encode_reply(replace(reply, rows=[], error=too_large(len(data), self)))
        try:
            self.publish(subject, data)
        except RetryableError as error:
            self.lost += 1
            _log.warning("reply to chunk %s lost: %s", reply.id, error.message)


def too_large(num_bytes: int, replies: Replies) -> TooLargeError:
    return TooLargeError(
        f"the answer takes {num_bytes} bytes and a bus message {replies.limit_bytes}: ask for "
        "fewer inputs at a time, fewer dimensions or a smaller dtype"
    )
