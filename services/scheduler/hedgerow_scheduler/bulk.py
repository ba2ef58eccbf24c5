"""The bulk lane of a worker: pull while there is room, run, store the result, then acknowledge.

Nothing is acknowledged before its result is stored, and nothing is stored twice, so a worker may
die at any moment: the stream delivers again what it held.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from hedgerow_scheduler.batching import cut
from hedgerow_scheduler.bulk_feed import Feed
from hedgerow_scheduler.bulk_misfits import Misfits
from hedgerow_scheduler.bulk_store import Item, Store
from hedgerow_scheduler.bulk_suspects import Suspects
from hedgerow_scheduler.intake import Served, find, keep
from hedgerow_scheduler.worker import Worker
from hedgerow_shared import subjects
from hedgerow_shared.bus import Bus
from hedgerow_shared.bus.jetstream import JetStream
from hedgerow_shared.bus.jetstream_kv import Bucket
from hedgerow_shared.bus.jetstream_pull import Delivery, Pull
from hedgerow_shared.errors import (
    BadChunkError,
    CancelledError,
    HedgerowError,
    NoWorkerError,
    UnknownModelError,
    WorkerLostError,
)
from hedgerow_shared.jobs import consumer_name, decode_chunk
from hedgerow_shared.ragged import Lane, Row
from hedgerow_shared.wire import ChunkReply
from hedgerow_shared.wire import decode_chunk as decode_work

_log = logging.getLogger("hedgerow.bulk")

_TICK_S = 0.25
_POLL_S = 0.005
_MAX_HELD = 128
_MAX_UNSTORED_BYTES = 8 << 20
_FOREVER = float("inf")


class BulkLane:
    """One worker's share of the stream HEDGEROW_BULK.

    bus: a connection of its own, so that results do not stand before answers to queries
    limit_tokens: nothing is pulled while more than this waits here for the device
    version_wait_s: see Misfits
    """

    def __init__(
        self,
        bus: Bus,
        served: Mapping[str, Served],
        worker: Worker,
        *,
        limit_tokens: int,
        version_wait_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._served, self._worker, self._clock = served, worker, clock
        self._limit_tokens = limit_tokens
        self._counts = worker.figures.counts
        self._reply_bytes = bus.max_message_bytes - 32 * 1024
        js = JetStream(bus)
        self._store = Store(js)
        self._misfits = Misfits(
            self._store, self._counts, version_wait_s=version_wait_s, spawn=self._spawn
        )
        self._suspects = Suspects(
            Bucket(js, subjects.KV_JOBS),
            self._store,
            quiet=self._quiet,
            run=self._run_alone,
            settle=self._settle_suspect,
            idle=self._resume,
        )
        pulls = [
            Pull(bus, subjects.STREAM_BULK, consumer_name(subjects.model_token(alias)), self._take)
            for alias in served
        ]
        self._feed = Feed(pulls, self._room)
        self._held: dict[int, Item] = {}
        self._aside: deque[Item] = deque()
        self._running = 0
        self._unstored_bytes = 0
        self._stopping = self._halted = False
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Begin to pull. Raises what `Bus.subscribe` raises."""
        await self._feed.start()
        self._worker.after_turn.append(self._feed.look)
        self._spawn(self._keep_alive())

    def halt(self) -> None:
        """This process ends at once and not in good order. What it gives back must not come to
        it again: it would be blamed for one more death."""
        self._halted = True
        self._feed.halt()

    async def stop_pulling(self) -> None:
        """Take no more; what waits behind suspects goes back at once."""
        self._stopping = True
        await self._feed.stop()
        for item in [*self._suspects.stop(), *self._aside]:
            self._give_back(item)
        self._aside.clear()

    async def finish(self, patience_s: float) -> bool:
        """Wait until everything held is stored; give the rest back. True: there was no rest."""
        end_s = self._clock() + patience_s
        while self._held and self._clock() < end_s:
            await asyncio.sleep(_POLL_S)
        done = not self._held
        self._suspects.cancel()
        for item in list(self._held.values()):
            self._give_back(item)
        for task in self._tasks:
            task.cancel()
        return done

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _room(self) -> float:
        """Tokens that may be pulled now."""
        full = len(self._held) >= _MAX_HELD or self._unstored_bytes > _MAX_UNSTORED_BYTES
        if full or self._suspects.busy:
            return 0
        return self._limit_tokens - self._worker.waiting_tokens(Lane.BULK)

    async def _keep_alive(self) -> None:
        """Tell the server in time that what is held is being worked on."""
        while True:
            await asyncio.sleep(_TICK_S)
            now_s = self._clock()
            for item in self._held.values():
                if now_s - item.told_s >= item.job.wait_ms / 3e3 - _TICK_S:
                    item.told_s = now_s
                    item.delivery.in_progress()

    def _take(self, delivery: Delivery) -> None:
        """Handle one delivery."""
        known = self._held.get(delivery.seq)
        if known is not None:
            known.delivery = delivery  # it was late with us, not lost
            return
        if self._stopping or self._halted:
            delivery.nak()
            return
        self._counts["bulk_pulled"] += 1
        self._counts["bulk_redelivered"] += delivery.attempt > 1
        try:
            item = self._item(delivery)
        except (BadChunkError, UnknownModelError) as error:
            self._misfits.bury(delivery, error.message)
            return
        if item.served is None:
            error = self._misfits.hand_on(item)
            if error is not None:
                self._held[delivery.seq] = item
                self._spawn(self._give_up(item, error))
            return
        self._feed.saw(item.num_tokens)
        self._held[delivery.seq] = item
        if delivery.attempt > 1:
            self._suspects.put(item)
        elif self._suspects.busy:
            self._aside.append(item)
        else:
            self._start(item)

    def _item(self, delivery: Delivery) -> Item:
        job = decode_chunk(delivery.data)
        chunk = decode_work(job.body)
        if not chunk.batch.num_seqs == len(job.ids) == len(job.seen) // 4:
            raise BadChunkError(f"{len(job.ids)} row ids for {chunk.batch.num_seqs} sequences")
        chunk = replace(chunk, lane=Lane.BULK)
        try:
            served = find(self._served, chunk)
        except NoWorkerError:
            served = None
        return Item(delivery, job, chunk, served, self._clock())

    async def _give_up(self, item: Item, error: HedgerowError) -> None:
        """Every row gets the error, and the chunk is kept where somebody may look at it."""
        await self._store.keep(item, error.message)
        rows: list[Row] = [error] * item.num_seqs
        await self._settle(item, item.reply(self._worker.id, rows))

    def _start(self, item: Item) -> None:
        self._running += 1
        try:
            self._offer(item, item.chunk.batch, partial(self._answered, item))
        except HedgerowError as error:
            rows: list[Row] = [error] * item.num_seqs
            self._answered(item, item.reply(self._worker.id, rows))

    def _offer(self, item: Item, batch: Any, deliver: Callable[[ChunkReply], None]) -> None:
        assert item.served is not None, "left for others"
        chunk = replace(item.chunk, batch=batch)
        held = keep(
            chunk, item.served, deliver, self._reply_bytes,
            arrived_s=self._clock(), expires_s=_FOREVER,
        )  # fmt: skip
        self._worker.offer(held)

    def _answered(self, item: Item, reply: ChunkReply) -> None:
        """The worker is done with a chunk. The rows may be views: read before this returns."""
        self._running -= 1
        if isinstance(reply.error, WorkerLostError | CancelledError):
            self._give_back(item)
            return
        if reply.error is not None:
            reply = replace(reply, rows=[reply.error] * item.num_seqs, error=None)
        self._spawn(self._settle(item, reply))

    def _settle(self, item: Item, reply: ChunkReply) -> Coroutine[Any, Any, None]:
        data, counts = self._store.pack(item, reply)
        self._unstored_bytes += len(data)

        async def settle() -> None:
            try:
                await self._store.result(item, data, counts)
            finally:
                self._unstored_bytes -= len(data)
            item.delivery.ack()
            self._counts["bulk_stored"] += 1
            self._counts["bulk_rows_failed"] += counts.failed
            self._forget(item)

        return settle()

    def _give_back(self, item: Item) -> None:
        self._counts["bulk_given_back"] += 1
        item.delivery.nak()
        self._forget(item)

    def _forget(self, item: Item) -> None:
        self._held.pop(item.delivery.seq, None)
        self._feed.look()

    async def _quiet(self) -> None:
        while self._running:
            await asyncio.sleep(_POLL_S)

    async def _run_alone(self, item: Item, start: int, stop: int) -> list[Row]:
        answer: asyncio.Future[list[Row]] = asyncio.get_running_loop().create_future()

        def deliver(reply: ChunkReply) -> None:
            if reply.error is not None:
                answer.set_exception(reply.error)
            else:
                answer.set_result([_own(row) for row in reply.rows])

        try:
            self._offer(item, cut(item.chunk.batch, start, stop), deliver)
            return await answer
        except (WorkerLostError, CancelledError):
            raise
        except HedgerowError as error:
            return [error] * (stop - start)

    async def _settle_suspect(self, item: Item, rows: list[Row] | None) -> None:
        if rows is None:
            self._give_back(item)
        else:
            self._counts["bulk_ran_alone"] += 1
            await self._settle(item, item.reply(self._worker.id, rows))

    def _resume(self) -> None:
        """The last suspect is done: go on with what came meanwhile."""
        while self._aside and not self._stopping:
            self._start(self._aside.popleft())
        self._feed.look()


def _own(row: Row) -> Row:
    return row if isinstance(row, HedgerowError) else tuple(np.array(a) for a in row)
