"""One chunk on its way: the first attempt, perhaps a second one elsewhere, whichever answers."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Protocol

from hedgerow_gateway.fleet import Fleet
from hedgerow_shared import subjects
from hedgerow_shared.bus import Message
from hedgerow_shared.errors import (
    DeadlineError,
    HedgerowError,
    NoWorkerError,
    OverloadedError,
    WorkerLostError,
)
from hedgerow_shared.wire import ChunkReply, decode_reply

RECONNECT_S = 5.0
"""How long a chunk waits for a lost bus, and then for the first worker to be back on it."""
_POLL_S = 0.02
_SEEK_S = 0.1


class Requests(Protocol):
    """What a flight needs of the bus."""

    @property
    def is_connected(self) -> bool: ...

    async def request(self, subject: str, data: bytes, *, timeout_s: float) -> Message: ...


class Flight:
    """Delivers one chunk and returns its reply, never later than `end_s`.

    encode: remaining seconds -> bytes of the chunk
    end_s: on the loop's clock

    A reply carries its error; nothing but cancellation is raised. `outstanding` tells whether
    somebody may still be working on the chunk.
    """

    def __init__(
        self,
        bus: Requests,
        fleet: Fleet,
        model: str,
        encode: Callable[[float], bytes],
        end_s: float,
    ) -> None:
        self._bus, self._fleet, self._model = bus, fleet, model
        self._encode, self._end_s = encode, end_s
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[ChunkReply]] = set()
        self.retried = False

    @property
    def outstanding(self) -> bool:
        return bool(self._tasks)

    async def run(self, attempt_s: float) -> ChunkReply:
        """Try the queue group; after `attempt_s` of silence, or a refusal, one other worker."""
        sent_s = self._loop.time()
        try:
            self._send(subjects.chunk(self._model))
            reply = await self._first(min(sent_s + attempt_s, self._end_s))
            if reply is None:
                return await self._hedge(sent_s)
            if reply.error is None or not await self._again(reply):
                return reply
            return await self._first(self._end_s) or _LATE
        finally:
            for task in self._tasks:
                task.cancel()

    async def _hedge(self, sent_s: float) -> ChunkReply:
        """The first worker is silent. Nobody knows which it was, so ask one that has said
        something since: that one is not it. Meanwhile the first may still answer."""
        gone_s = math.inf
        while (now_s := self._loop.time()) < self._end_s:
            other = self._fleet.other(self._model, (), sent_s)
            if other is not None:
                self.retried = True
                self._send(subjects.worker_chunk(other, self._model))
                return await self._first(self._end_s) or _LATE
            self._fleet.look_again(self._model)
            gone_s = math.inf if self._fleet.serving(self._model) else min(gone_s, now_s)
            if now_s - gone_s > RECONNECT_S:
                return _failed(WorkerLostError("the worker that had this is gone, and no other"))
            reply = await self._first(min(now_s + _SEEK_S, self._end_s))
            if reply is not None:
                return reply
        return _LATE

    async def _again(self, reply: ChunkReply) -> bool:
        """Start the second attempt a refusal allows; False when there is none to make."""
        error = reply.error
        if not reply.worker:
            if not isinstance(error, WorkerLostError):
                return False
            self.retried = True
            self._tasks.add(self._loop.create_task(self._after_reconnect(error)))
            return True
        if not isinstance(error, OverloadedError | NoWorkerError | WorkerLostError):
            return False
        other = self._fleet.other(self._model, (reply.worker,))
        if other is None:
            return False
        self.retried = True
        self._send(subjects.worker_chunk(other, self._model))
        return True

    async def _after_reconnect(self, lost: WorkerLostError) -> ChunkReply:
        """The bus went away with the chunk. Send it again once bus and workers are back."""
        until_s = min(self._end_s, self._loop.time() + RECONNECT_S)
        reply = _failed(lost)
        while self._loop.time() < until_s:
            if self._bus.is_connected:
                reply = await self._ask(subjects.chunk(self._model))
                if not isinstance(reply.error, NoWorkerError | WorkerLostError):
                    break
            await asyncio.sleep(_POLL_S)
        return reply

    def _send(self, subject: str) -> None:
        self._tasks.add(self._loop.create_task(self._ask(subject)))

    async def _ask(self, subject: str) -> ChunkReply:
        left_s = self._end_s - self._loop.time()
        if left_s <= 0:
            return _failed(DeadlineError("the time given to this request is over"))
        try:
            message = await self._bus.request(subject, self._encode(left_s), timeout_s=left_s)
            reply = decode_reply(message.data)
        except HedgerowError as error:
            return _failed(error)
        self._fleet.heard(reply.worker, reply.backlog_tokens)
        return reply

    async def _first(self, until_s: float) -> ChunkReply | None:
        """The first good reply, or the last error once all attempts ended; None = too late."""
        reply: ChunkReply | None = None
        while self._tasks:
            left_s = until_s - self._loop.time()
            done, _ = await asyncio.wait(
                self._tasks, timeout=max(left_s, 0), return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                return None
            for task in done:
                self._tasks.discard(task)
                reply = task.result()
                if reply.error is None:
                    return reply
        return reply


def _failed(error: HedgerowError) -> ChunkReply:
    """A failure of ours in the form of a worker's answer; `worker` is empty."""
    return ChunkReply("", "", error=error)


_LATE = _failed(DeadlineError("no worker answered in time"))
