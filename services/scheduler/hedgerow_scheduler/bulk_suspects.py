"""Bulk chunks that were delivered before: each alone, until it is known which row ends workers."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable

from hedgerow_scheduler import bulk_attempts
from hedgerow_scheduler.bulk_attempts import STRIKES, Attempt
from hedgerow_scheduler.bulk_store import Item, Store
from hedgerow_shared.bus.jetstream import SequenceConflictError
from hedgerow_shared.bus.jetstream_kv import Bucket
from hedgerow_shared.errors import (
    CancelledError,
    HedgerowError,
    RowError,
    WorkerLostError,
)
from hedgerow_shared.ragged import Row

_RETRY_S = 0.5

_log = logging.getLogger("hedgerow.bulk")


class Suspects:
    """Runs suspects one after the other, while nothing else of the bulk lane runs here.

    quiet: returns once none of the other bulk chunks is at work
    run: (item, first row, last row + 1) -> their rows; raises WorkerLostError when this worker
        ends before it has them
    settle: (item, rows): stores the result and acknowledges; rows None: gives the chunk back
    idle: called when there is none left
    """

    def __init__(
        self,
        bucket: Bucket,
        store: Store,
        *,
        quiet: Callable[[], Awaitable[object]],
        run: Callable[[Item, int, int], Awaitable[list[Row]]],
        settle: Callable[[Item, list[Row] | None], Awaitable[None]],
        idle: Callable[[], None],
    ) -> None:
        self._bucket, self._store = bucket, store
        self._quiet, self._run, self._settle, self._idle = quiet, run, settle, idle
        self._queue: deque[Item] = deque()
        self._task: asyncio.Task[None] | None = None
        self._stopping = False

    @property
    def busy(self) -> bool:
        return self._task is not None

    def put(self, item: Item) -> None:
        self._queue.append(item)
        if self._task is None:
            self._task = asyncio.create_task(self._work())

    def stop(self) -> list[Item]:
        """Begin no other; returns those that were not begun."""
        self._stopping = True
        waiting = list(self._queue)
        self._queue.clear()
        return waiting

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _work(self) -> None:
        try:
            while self._queue:
                item = self._queue.popleft()
                await self._quiet()
                await self._settle(item, await self._examine(item))
        finally:
            self._task = None
            self._idle()

    async def _examine(self, item: Item) -> list[Row] | None:
        """The rows of a suspect; None when this worker ends before it has them."""
        note = await _Note.begin(self._bucket, bulk_attempts.key(item.job.job, item.job.chunk))
        try:
            rows = await self._rows(item, note)
        except (WorkerLostError, CancelledError):
            if self._stopping:
                await note.write(note.attempt.ended())
            return None
        given_up = note.attempt.given_up
        if given_up:
            names = ", ".join(repr(item.job.ids[row]) for row in given_up)
            reason = f"{STRIKES} workers died on row {names} while it ran alone"
            await self._store.keep(item, reason)
        await note.write(note.attempt.ended())
        return rows

    async def _rows(self, item: Item, note: _Note) -> list[Row]:
        if not note.attempt.by_row:
            return await self._run(item, 0, item.num_seqs)
        rows: list[Row] = []
        given_up = note.attempt.given_up
        for index in range(item.num_seqs):
            if index in given_up:
                rows.append(RowError(f"{STRIKES} workers died on this input while it ran alone"))
                continue
            await note.write(note.attempt.at(index))
            rows += await self._run(item, index, index + 1)
        return rows


class _Note:
    """The attempt as it is written down, and its revision."""

    def __init__(self, bucket: Bucket, key: str, attempt: Attempt, revision: int) -> None:
        self._bucket, self._key = bucket, key
        self.attempt, self._revision = attempt, revision

    @classmethod
    async def begin(cls, bucket: Bucket, key: str) -> _Note:
        """Read what was noted, and note that it begins again."""
        while True:
            try:
                entry = await bucket.get_direct(key)
                last = bulk_attempts.decode(entry.value) if entry else None
                note = cls(bucket, key, bulk_attempts.begin(last), entry.revision if entry else 0)
                note._revision = await bucket.put(
                    key, bulk_attempts.encode(note.attempt), note._revision
                )
                return note
            except HedgerowError as error:
                # A conflict is a replica that lags, or another worker that was given it as well.
                _log.debug("bulk: no note of %s yet: %s", key, error.message)
                await asyncio.sleep(_RETRY_S)

    async def write(self, attempt: Attempt) -> None:
        """Returns once it is noted. Somebody else's note in between ends the claim to it: then
        two workers run the chunk, and one result is kept."""
        while True:
            try:
                self._revision = await self._bucket.put(
                    self._key, bulk_attempts.encode(attempt), self._revision
                )
            except SequenceConflictError as error:
                _log.debug("bulk: %s", error.message)
            except HedgerowError as error:
                _log.debug("bulk: %s not noted yet: %s", self._key, error.message)
                await asyncio.sleep(_RETRY_S)
                continue
            self.attempt = attempt
            return
