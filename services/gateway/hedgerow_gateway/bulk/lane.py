"""The bulk lane of a gateway: submit, status, results, cancel; whatever the transport."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import msgspec

from hedgerow_gateway.bodies import encode
from hedgerow_gateway.bulk import pages, parts, store
from hedgerow_gateway.bulk.backlog import Backlog
from hedgerow_gateway.bulk.parts import Part
from hedgerow_gateway.bulk.records import Job, Jobs, refuse_ended
from hedgerow_gateway.bulk.request import BulkRequest, PageRequest, read_bulk, read_job, read_page
from hedgerow_gateway.bulk.streams import StreamOptions, Streams
from hedgerow_gateway.bulk.tracker import Tracker
from hedgerow_gateway.call import Call
from hedgerow_gateway.core import Core, check_fit, in_turns
from hedgerow_gateway.models import ServedModel
from hedgerow_gateway.splitter import ChunkLimits
from hedgerow_gateway.tokenizer.encoded import Encoded, from_ids
from hedgerow_shared import subjects
from hedgerow_shared.bus import Bus
from hedgerow_shared.bus.jetstream import JetStream
from hedgerow_shared.bus.jetstream_kv import Bucket
from hedgerow_shared.errors import (
    BadChunkError,
    DeadlineError,
    JobConflictError,
    StorageError,
)

_PAGE_BYTES = 8 << 20

_log = logging.getLogger("hedgerow.bulk")

Answer = tuple[str, list[bytes]]


class Bulk:
    """bus: a connection of its own, so that a re-index never stands before queries.

    engines: alias -> fingerprints of the engines that serve it now
    workers: alias -> how many workers serve it now
    """

    def __init__(
        self,
        bus: Bus,
        core: Core,
        *,
        engines: Callable[[str], set[str]],
        workers: Callable[[str], int],
        options: StreamOptions,
        limits: ChunkLimits,
        gateway_id: str,
    ) -> None:
        self._core, self._engines, self._workers = core, engines, workers
        self._options, self._limits = options, limits
        self._js = JetStream(bus)
        bucket = Bucket(self._js, subjects.KV_JOBS)
        self._jobs = Jobs(bucket)
        self._tracker = Tracker(self._js, bucket, gateway_id)
        self.streams = Streams(self._js, core.models.aliases, options)
        self.backlog = Backlog(self._js, self.streams, core.models.aliases)

    def start(self) -> None:
        """Have the streams made, and watch them, in the background."""
        self.streams.start()
        self.backlog.start()

    async def stop(self) -> None:
        await self.backlog.stop()
        await self.streams.stop()

    async def submit(self, body: Mapping[str, Any], call: Call) -> Answer:
        """Store the rows of a job. What is answered is stored; what is not may be, and is
        recognised when it is sent again."""
        request = read_bulk(body, self._core.models, self._core.rules, call.alias)
        await self.streams.check()
        encoded = await self._encode(request)
        try:
            async with asyncio.timeout(call.ttl_s):
                answer = await self._store(request, encoded, call)
        except TimeoutError:
            raise DeadlineError("not all was stored in the time given: send it again") from None
        except StorageError:
            self.streams.doubt()
            raise
        return request.model.alias, [encode(answer, call.form)]

    async def status(self, body: Mapping[str, Any], call: Call) -> Answer:
        """How far a job is."""
        job = await self._jobs.get(read_job(body))
        return job.model, [encode(await self._report(job), call.form)]

    async def results(self, body: Mapping[str, Any], call: Call) -> Answer:
        """A page of results, in the order in which they were stored."""
        request = read_page(body)
        job = await self._jobs.get(request.job)
        if request.release and request.start > 1:
            # Counted first: what is deleted cannot be counted any more.
            await self._tracker.save(job.job)
            await self._js.purge(
                subjects.STREAM_RESULT, subject=subjects.result(job.job), before_seq=request.start
            )
        encoding = None if call.form == "msgpack" else request.encoding
        page = await self._page(job, request, call.max_reply_bytes, encoding)
        while True:
            if encoding is None:
                made = [pages.to_msgpack(page)]
            else:
                made = await in_turns(pages.to_json(page, encoding))
            size, limit = sum(map(len, made)), call.max_reply_bytes
            if limit is None or size <= limit or len(page.results) < 2:
                return job.model, made
            page = page.first(len(page.results) // 2)

    async def cancel(self, body: Mapping[str, Any], call: Call) -> Answer:
        """End a job: what no worker has begun is dropped, what is done stays.

        One that is complete stays so: the answer says the state, and may be asked again.
        """
        name = read_job(body)
        job = await self._jobs.get(name)
        if not await self._is_complete(job):
            job = await self._jobs.change(
                name, lambda job: msgspec.structs.replace(job, state="cancelled")
            )
            await self._drop(job)
        return job.model, [encode(await self._report(job), call.form)]

    async def _encode(self, request: BulkRequest) -> Encoded | None:
        """The rows as the model gets them; None for a submission without rows."""
        model = request.model
        if request.token_ids:
            encoded = from_ids(request.token_ids, model.limit)
            check_fit(encoded, model.limit, request.truncate, _path("token_ids"))
            return encoded
        if not request.texts:
            return None
        return await self._core.encode_texts(
            model,
            request.texts,
            truncate=request.truncate,
            prompt=request.prompt.text,
            path=_path("text"),
        )

    async def _store(
        self, request: BulkRequest, encoded: Encoded | None, call: Call
    ) -> dict[str, Any]:
        job = await self._jobs.open(self._wanted(request))
        known = False
        if job.state == "cancelled":
            refuse_ended(job)
        answer: dict[str, Any] = {"job": job.job, "model": job.model, "rows": 0, "chunks": 0}
        if encoded is not None:
            part = self._part(request, encoded, job, call)
            known = await store.has_receipt(self._js, part)
            if not known:
                refuse_ended(job)
                await store.store_chunks(self._js, part)
                known = not await store.store_receipt(self._js, part)
            answer |= {
                "rows": len(part.ids),
                "chunks": len(part.spans),
                "tokens": encoded.num_tokens,
                "truncated": int(encoded.truncated.sum()),
            }
        state = await self._settle(request, job)
        return {**answer, "known": known, "state": state, "fingerprint": job.fingerprint}

    async def _settle(self, request: BulkRequest, job: Job) -> str:
        """Close the job if this was its last part; notice if it was cancelled meanwhile."""

        def close(found: Job) -> Job:
            closes = request.last and found.state == "open"
            return msgspec.structs.replace(found, state="closed") if closes else found

        after = await self._jobs.change(job.job, close)
        if after.state == "cancelled":
            await self._drop(after)
            raise JobConflictError(f"job {job.job} was cancelled meanwhile")
        return after.state

    def _wanted(self, request: BulkRequest) -> Job:
        return Job(
            job=request.job,
            model=request.model.alias,
            fingerprint=self._fingerprint(request.model),
            dtype=request.dtype,
            dimensions=request.dimensions or 0,
            prompt_name=request.prompt.name,
            prompt=request.prompt.text,
            truncate=request.truncate,
            chunk_sequences=self._limits.sequences,
            chunk_tokens=self._limits.tokens,
            created_ms=int(time.time() * 1e3),
        )

    def _fingerprint(self, model: ServedModel) -> str:
        """The engine's half belongs to it where all workers of the model agree on one."""
        engines = self._engines(model.alias)
        return f"{model.fingerprint}:{engines.pop()}" if len(engines) == 1 else model.fingerprint

    def _part(self, request: BulkRequest, encoded: Encoded, job: Job, call: Call) -> Part:
        limits = ChunkLimits(job.chunk_sequences, job.chunk_tokens)
        cuts = parts.spans(encoded, request.row_bytes, limits)
        return Part(
            job=job.job,
            model=job.model,
            fingerprint=job.fingerprint,
            key=parts.part_key(request.ids, encoded, cuts),
            ids=request.ids,
            encoded=encoded,
            output=request.output,
            spans=cuts,
            ack_wait_s=self._options.ack_wait_s,
            trace=call.trace,
        )

    async def _page(
        self, job: Job, request: PageRequest, reply_bytes: int | None, encoding: Any
    ) -> pages.Page:
        room = _PAGE_BYTES if reply_bytes is None else min(reply_bytes, _PAGE_BYTES)
        found = await self._js.read(
            subjects.STREAM_RESULT,
            subjects.result(job.job),
            from_seq=request.start,
            max_messages=max(request.limit // self._limits.sequences, 1),
            max_bytes=pages.raw_bytes(job.dtype, room, encoding),
        )
        results: list[pages.Result] = []
        for stored in found.messages:
            try:
                results.append(pages.read(stored))
            except BadChunkError as error:
                _log.error("bulk: %s is left out: %s", stored.subject, error.message)
        following = found.messages[-1].seq + 1 if found.messages else request.start
        return pages.Page(job, results, following, found.pending)

    async def _report(self, job: Job) -> dict[str, Any]:
        (progress, rate), waiting = await asyncio.gather(
            self._tracker.refresh(job.job), self._waiting(job)
        )
        now_s = time.time()
        left = max(progress.submitted - progress.settled, 0)
        complete = job.state == "closed" and not left and not waiting
        return {
            "job": job.job,
            "model": job.model,
            "state": "complete" if complete else job.state,
            "submitted": progress.submitted,
            "done": progress.done,
            "failed": progress.failed,
            "waiting": 0 if job.state == "cancelled" else left,
            "tokens": progress.tokens,
            "chunks_waiting": waiting,
            "rows_per_s": round(rate.per_s(int(now_s * 1e9)), 2),
            "age_s": round(max(now_s - job.created_ms / 1e3, 0.0), 3),
            "workers": self._workers(job.model),
            "dtype": job.dtype,
            "dimensions": job.dimensions or None,
            "prompt": job.prompt_name,
            "fingerprint": job.fingerprint,
        }

    async def _is_complete(self, job: Job) -> bool:
        return (await self._report(job))["state"] == "complete"

    async def _waiting(self, job: Job) -> int:
        """Chunks that are not acknowledged yet."""
        info = await self._js.stream_info(
            subjects.STREAM_BULK, subjects=subjects.bulk(job.model, job.job)
        )
        counts = ((info or {}).get("state") or {}).get("subjects") or {}
        return sum(counts.values())

    async def _drop(self, job: Job) -> None:
        await self._js.purge(subjects.STREAM_BULK, subject=subjects.bulk(job.model, job.job))


def _path(field: str) -> Callable[[int], str]:
    return partial("rows[{1}].{0}".format, field)
