"""Chunks out, rows back: publish, gather, deadline, cancel, sew in order."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from functools import partial

from hedgerow_gateway.fleet import Fleet
from hedgerow_gateway.flight import Flight
from hedgerow_gateway.gather import Gather
from hedgerow_gateway.latency import Latencies
from hedgerow_gateway.near import Near
from hedgerow_gateway.tokenizer.encoded import Encoded
from hedgerow_shared import subjects
from hedgerow_shared.bus import Bus
from hedgerow_shared.errors import HedgerowError, RetryableError
from hedgerow_shared.ragged import Lane, OutputSpec, Row
from hedgerow_shared.wire import Chunk, ChunkReply, encode_cancel

_ATTEMPT_SHARE = 1 / 3
"""Of the time a request has left: a silent first attempt must leave room for a second one."""
_LEAST_ATTEMPT_S = 0.05
"""Below this the answer to the first attempt is as near as one to a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchOptions:
    """attempt_floor_s, attempt_factor: an attempt may take max(floor, factor x recent p99)
    attempt_unknown_s: the same while there is no recent p99 to go by
    window_tokens: of one request in flight, for each worker of the model; well under a
        worker's backlog limit, so that no request is refused because of its own size
    """

    attempt_floor_s: float = 1.0
    attempt_factor: float = 8.0
    attempt_unknown_s: float = 10.0
    window_tokens: int = 16_384


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What one request asks of the workers.

    chunks: (start, stop) of each, from `splitter.split`
    deadline_s: on the loop's clock
    keep_going: a failed chunk costs only its own rows; else the first failure ends the request
    """

    model: str
    encoded: Encoded
    output: OutputSpec
    lane: Lane
    chunks: Sequence[tuple[int, int]]
    deadline_s: float
    fingerprint: str = ""
    trace: str = ""
    keep_going: bool = False


@dataclass(frozen=True, slots=True)
class Done:
    """Rows in the order of the inputs; the times are those of the slowest chunk."""

    rows: list[Row]
    fingerprint: str
    queue_ms: float
    compute_ms: float


class Dispatcher:
    """Sends work to the fleet. One per gateway; keeps what it learns of latencies.

    near: the worker of this process, if it has one: asked first
    """

    def __init__(
        self,
        bus: Bus,
        fleet: Fleet,
        gateway_id: str,
        options: DispatchOptions,
        near: Near | None = None,
    ) -> None:
        self._bus, self._fleet, self._options, self._near = bus, fleet, options, near
        self._loop = asyncio.get_running_loop()
        self._ids = (f"{gateway_id}-{n:x}" for n in itertools.count(1))
        self._latencies: dict[tuple[str, Lane], Latencies] = {}
        self._dropped: dict[str, list[str]] = {}
        self.counts: Counter[str] = Counter()

    async def run(self, work: Work) -> Done:
        """Return one row or error per sequence, in order.

        Raises what befell the request as a whole: NoWorkerError, OverloadedError,
        DeadlineError, WorkerLostError, or what a worker said of a chunk. When the caller is
        cancelled, the workers are told.
        """
        if len(work.chunks) == 1:
            reply = await self._deliver(work, work.chunks[0])
            if reply.error is not None and not work.keep_going:
                raise reply.error
            return _sew(work, [reply])
        window = self._options.window_tokens * max(1, len(self._fleet.serving(work.model)))
        cu = work.encoded.cu_seqlens
        gather = Gather(partial(self._deliver, work), window, keep_going=work.keep_going)
        sizes = [int(cu[stop] - cu[start]) for start, stop in work.chunks]
        return _sew(work, await gather.run(work.chunks, sizes))

    async def _deliver(self, work: Work, span: tuple[int, int]) -> ChunkReply:
        """Bring one chunk to a worker and its reply back; the reply carries the error."""
        chunk_id = next(self._ids)
        batch = work.encoded.batch(*span, work.output)

        def chunk(left_s: float) -> Chunk:
            ttl_ms = left_s * 1e3
            return Chunk(
                chunk_id, work.model, work.lane, ttl_ms, batch, work.fingerprint, work.trace
            )

        flight = Flight(
            self._bus, self._fleet, work.model, work.lane, chunk, work.deadline_s, self._near
        )
        latencies = self._latencies.setdefault((work.model, work.lane), Latencies())
        options = self._options
        left_s = work.deadline_s - self._loop.time()
        attempt_s = min(
            latencies.attempt_s(
                floor_s=options.attempt_floor_s,
                factor=options.attempt_factor,
                unknown_s=options.attempt_unknown_s,
            ),
            max(left_s * _ATTEMPT_SHARE, _LEAST_ATTEMPT_S),
        )
        try:
            reply = await flight.run(attempt_s)
        finally:
            self.counts["chunks"] += 1
            self.counts["retries"] += flight.retried
            if flight.outstanding:
                self._drop(work.model, chunk_id)
        if reply.error is not None:
            return reply
        # Not the whole flight: the silence before a second attempt would teach us to wait longer.
        latencies.add(flight.took_s)
        if len(reply.rows) != batch.num_seqs:
            wrong = f"{len(reply.rows)} rows came back for {batch.num_seqs} texts"
            return replace(reply, rows=[], error=HedgerowError(wrong))
        return reply

    def _drop(self, model: str, chunk_id: str) -> None:
        """Tell the workers of a model that nobody waits for a chunk, once per loop turn."""
        if not self._dropped:
            self._loop.call_soon(self._send_dropped)
        self._dropped.setdefault(model, []).append(chunk_id)

    def _send_dropped(self) -> None:
        dropped, self._dropped = self._dropped, {}
        for model, ids in dropped.items():
            self.counts["cancelled"] += len(ids)
            body = encode_cancel(ids)
            for worker in self._fleet.serving(model):
                with contextlib.suppress(RetryableError):
                    self._bus.publish_nowait(subjects.worker_cancel(worker.id), body)


def _sew(work: Work, replies: Sequence[ChunkReply]) -> Done:
    """Rows in order; a chunk that failed gives its error to each of its rows."""
    rows: list[Row] = []
    for (start, stop), reply in zip(work.chunks, replies, strict=True):
        rows += reply.rows if reply.error is None else [reply.error] * (stop - start)
    prints = {reply.fingerprint for reply in replies if reply.error is None}
    return Done(
        rows,
        one_fingerprint(prints),
        max(reply.queue_ms for reply in replies),
        max(reply.compute_ms for reply in replies),
    )


def one_fingerprint(prints: Set[str]) -> str:
    """The version of the model that gave all rows of an answer; "" where none did.

    Raises RetryableError when several did.
    """
    if len(prints) > 1:
        raise RetryableError(
            f"workers of different fingerprints answered ({', '.join(sorted(prints))}): their "
            "vectors do not belong together; an update is probably under way"
        )
    return next(iter(prints), "")
