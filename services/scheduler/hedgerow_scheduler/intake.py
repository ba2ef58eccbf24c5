"""From bus messages to chunks in the worker, or to an answer that says why not."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from hedgerow_scheduler.ports import Engine
from hedgerow_scheduler.replies import Held, Replies, hold, kept
from hedgerow_scheduler.worker import Worker
from hedgerow_shared.bus import Message
from hedgerow_shared.errors import (
    BadChunkError,
    DeadlineError,
    HedgerowError,
    NoWorkerError,
    OverloadedError,
    TooLargeError,
    UnknownModelError,
)
from hedgerow_shared.ragged import OutputSpec
from hedgerow_shared.wire import Chunk, ChunkReply, decode_cancel, decode_chunk

_log = logging.getLogger("hedgerow.worker")

MAX_TTL_S = 3600.0
MAX_ARRAYS = 64
"""Dtypes times dimensions of one chunk."""


@dataclass(frozen=True, slots=True)
class Served:
    """A model of this worker, as far as intake must know it.

    fingerprints: what a chunk may ask for; one that names another version is sent elsewhere
    quadratic: see `packer.costs_of`
    """

    engine: Engine
    dimension: int
    fingerprints: frozenset[str]
    quadratic: float = 0.0


class Intake:
    """Checks every message before anything of it is kept. Answers each one exactly once.

    reply_prefixes: an answer is only sent to a subject that begins with one of these, because
        the permission to answer overrides what this user may otherwise publish
    backlog_tokens: a chunk that would find more than this before it is refused (429)
    age_s: how old a message may be that is read now (see Watchdog.age_s)
    """

    def __init__(
        self,
        served: Mapping[str, Served],
        worker: Worker,
        replies: Replies,
        *,
        reply_prefixes: tuple[str, ...],
        backlog_tokens: int,
        clock: Callable[[], float],
        age_s: Callable[[], float],
    ) -> None:
        self._served, self._worker, self._replies = served, worker, replies
        self._reply_prefixes = reply_prefixes
        self._backlog_tokens = backlog_tokens
        self._clock, self._age_s = clock, age_s

    def take(self, message: Message) -> None:
        """Handle a message of a chunk subject."""
        reply_to = message.reply
        if not reply_to.startswith(self._reply_prefixes):
            self._count("unanswerable")
            return
        chunk_id, fingerprint = "", ""
        try:
            chunk = decode_chunk(message.data)
            chunk_id = chunk.id
            served = find(self._served, chunk)
            fingerprint = served.engine.fingerprint
            deliver = partial(self._replies.send, reply_to)
            held = self._accept(chunk, served, deliver, self._age_s())
        except HedgerowError as error:
            self._refuse(reply_to, chunk_id, error, fingerprint)
            return
        self._worker.offer(held)

    def hand_over(self, chunk: Chunk, deliver: Callable[[ChunkReply], None], *, alone: bool) -> str:
        """Take a chunk from a gateway in this process; its reply goes to `deliver`, later.

        Returns this worker's id; empty for whatever would be refused (the bus way says why), and
        where something is on the device or waits before it that another worker may not have.
        alone: there is no other
        """
        if not alone and self._worker.backlog_tokens(chunk.lane):
            return ""
        try:
            served = find(self._served, chunk)
            held = self._accept(chunk, served, lambda reply: deliver(kept(reply)), 0.0)
        except HedgerowError:
            return ""
        self._worker.offer(held)
        return self._worker.id

    def cancel(self, message: Message) -> None:
        """Handle a message of the cancel subject."""
        try:
            ids = decode_cancel(message.data)
        except BadChunkError as error:
            self._count("bad_cancels")
            _log.debug("cancel message ignored: %s", error.message)
            return
        self._worker.cancel(ids)

    def dropped(self, reply_to: str) -> None:
        """Answer a message that the bus had no room for."""
        if reply_to.startswith(self._reply_prefixes):
            self._refuse(reply_to, "", self._overloaded("the worker reads too slowly"))

    def _accept(
        self, chunk: Chunk, served: Served, deliver: Callable[[ChunkReply], None], age_s: float
    ) -> Held:
        now_s = self._clock()
        ttl_s = min(chunk.ttl_ms / 1e3, MAX_TTL_S) - age_s
        if not ttl_s > 0:  # not `<= 0`: that lets NaN through
            raise DeadlineError("the chunk arrived after its time was over")
        held = keep(
            chunk, served, deliver, self._replies.limit_bytes,
            arrived_s=now_s, expires_s=now_s + ttl_s,
        )  # fmt: skip
        backlog = self._worker.backlog_tokens(chunk.lane)
        if backlog and backlog + chunk.batch.num_tokens > self._backlog_tokens:
            raise self._overloaded(f"{backlog} tokens are waiting")
        self._count("accepted")
        return held

    def _overloaded(self, why: str) -> OverloadedError:
        return OverloadedError(
            f"worker {self._worker.id} is full: {why}", retry_after_s=self._worker.retry_after_s()
        )

    def _refuse(
        self, reply_to: str, chunk_id: str, error: HedgerowError, fingerprint: str = ""
    ) -> None:
        self._count(f"refused_{error.code}")
        _log.debug("chunk %r refused: %s", chunk_id, error.message)
        backlog = self._worker.backlog_tokens()
        reply = ChunkReply(
            chunk_id,
            self._worker.id,
            error=error,
            backlog_tokens=backlog,
            fingerprint=fingerprint,
        )
        self._replies.send(reply_to, reply)

    def _count(self, name: str) -> None:
        self._worker.figures.counts[name] += 1


def find(models: Mapping[str, Served], chunk: Chunk) -> Served:
    """The model a chunk is for. Raises UnknownModelError, or NoWorkerError for a version of it
    that is served elsewhere, if anywhere."""
    served = models.get(chunk.model)
    if served is None:
        raise UnknownModelError(f"this worker does not serve {chunk.model!r}", param="model")
    if chunk.fingerprint and chunk.fingerprint not in served.fingerprints:
        raise NoWorkerError(
            f"this worker serves another version of {chunk.model!r} than {chunk.fingerprint}"
        )
    return served


def keep(
    chunk: Chunk,
    served: Served,
    deliver: Callable[[ChunkReply], None],
    limit_bytes: int,
    *,
    arrived_s: float,
    expires_s: float,
) -> Held:
    """The chunk as the worker holds it. limit_bytes: what an answer may take.

    Raises BadChunkError for what the model cannot run, TooLargeError for an answer that could
    not be sent.
    """
    _check_output(chunk.output)
    held = hold(
        chunk, deliver, arrived_s=arrived_s, expires_s=expires_s, quadratic=served.quadratic
    )
    longest, limit = max(held.seqlens), served.engine.max_seq_len
    if longest > limit:
        raise BadChunkError(f"a sequence of {longest} tokens; {chunk.model!r} takes {limit}")
    expected = reply_bytes(chunk, served.dimension)
    if expected > limit_bytes:
        raise TooLargeError(
            f"the answer would take {expected} bytes and a bus message holds {limit_bytes}: send "
            "smaller chunks"
        )
    return held


def reply_bytes(chunk: Chunk, dimension: int) -> int:
    """Bytes of vectors in the answer to a chunk; what else is in it is small."""
    batch = chunk.batch
    if chunk.output.task == "multivector":
        rows = batch.num_tokens
    elif chunk.output.task == "embed":
        rows = batch.num_seqs
        if batch.spans.shape[0]:
            rows += batch.spans.shape[0] - len(set(batch.spans[:, 0].tolist()))
    else:
        return 0
    return rows * chunk.output.row_bytes(dimension)


def _check_output(output: OutputSpec) -> None:
    """Refuse what would make the answer explode before anything is computed from it."""
    arrays = len(output.dtypes) * max(len(output.dimensions), 1)
    if arrays > MAX_ARRAYS:
        raise BadChunkError(f"{arrays} arrays for each row; at most {MAX_ARRAYS} are given")
