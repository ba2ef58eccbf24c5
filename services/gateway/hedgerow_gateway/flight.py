"""One chunk on its way: the first attempt, perhaps a second one elsewhere, whichever answers."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Coroutine
from typing import Any, Protocol

from hedgerow_gateway.fleet import Fleet
from hedgerow_gateway.near import Near
from hedgerow_shared import subjects
from hedgerow_shared.awaited import Awaited
from hedgerow_shared.bus import Message
from hedgerow_shared.errors import (
    DeadlineError,
    HedgerowError,
    NoWorkerError,
    OverloadedError,
    WorkerLostError,
)
from hedgerow_shared.ragged import Lane
from hedgerow_shared.wire import Chunk, ChunkReply, decode_reply, encode_chunk

RECONNECT_S = 5.0
"""How long a chunk waits for a lost bus, and then for the first worker to be back on it."""
_POLL_S = 0.02
_SEEK_S = 0.1
_ELSEWHERE = (OverloadedError, NoWorkerError, WorkerLostError)


class Asked(Protocol):
    """A request on its way; see hedgerow_shared.awaited."""

    async def wait(self, timeout_s: float) -> bool: ...

    def result(self) -> Message | ChunkReply: ...

    def close(self) -> None: ...


class Requests(Protocol):
    """What a flight needs of the bus."""

    @property
    def is_connected(self) -> bool: ...

    async def ask(self, subject: str, data: bytes) -> Asked: ...


class Flight:
    """Delivers one chunk and returns its reply, never later than `end_s`.

    chunk: remaining seconds -> the chunk
    end_s: on the loop's clock
    near: the worker of this process, if it has one

    A reply carries its error; nothing but cancellation is raised. `outstanding` tells whether
    somebody may still be working on the chunk, `took_s` how long the attempt that answered took.
    """

    def __init__(
        self,
        bus: Requests,
        fleet: Fleet,
        model: str,
        lane: Lane,
        chunk: Callable[[float], Chunk],
        end_s: float,
        near: Near | None = None,
    ) -> None:
        self._bus, self._fleet, self._model, self._lane = bus, fleet, model, lane
        self._chunk, self._end_s, self._near = chunk, end_s, near
        self._loop = asyncio.get_running_loop()
        self._tasks: dict[asyncio.Task[ChunkReply], str] = {}
        self._avoid: tuple[str, ...] = ()
        self._calls: list[Asked] = []
        self._waiting = False
        self._gone_s = math.inf
        self.retried = False
        self.took_s = 0.0

    @property
    def outstanding(self) -> bool:
        return self._waiting or bool(self._tasks)

    async def run(self, attempt_s: float) -> ChunkReply:
        """Try the queue group (before it a worker in this process, if there is one); after
        `attempt_s` of silence, or a refusal, one other worker.

        Nobody knows which worker has the first attempt, so the second goes to one that has said
        something since: that one is not it. Meanwhile the first may still answer.
        """
        sent_s = self._loop.time()
        try:
            reply = await self._first(attempt_s)
            if reply is not None and reply.error is None:
                return reply
            return await self._seek(sent_s, sent_s + attempt_s, reply)
        finally:
            for task in self._tasks:
                task.cancel()
            for call in self._calls:
                call.close()

    async def _first(self, attempt_s: float) -> ChunkReply | None:
        """Ask in this task: one of its own would cost every query two turns of
        the loop. None after `attempt_s` of silence; a task then goes on waiting."""
        subject = subjects.chunk(self._model)
        sent = self._hand_over() or await self._send(subject)
        if isinstance(sent, ChunkReply):
            return sent
        call, sent_s = sent
        self._waiting = True
        answered = await call.wait(min(attempt_s, self._end_s - sent_s))
        self._waiting = False
        if answered:
            return self._read(call, subject, sent_s)
        self._start(self._answer(call, subject, sent_s))
        return None

    async def _seek(self, sent_s: float, silent_s: float, refused: ChunkReply | None) -> ChunkReply:
        """The second attempt. refused: what the first one came back with; None = nothing yet."""
        last = refused or _late()
        if refused is not None:
            self._again(refused)
        while self._tasks and (now_s := self._loop.time()) < self._end_s:
            if not self.retried and now_s >= silent_s and not self._other(self._avoid, sent_s):
                self._fleet.look_again(self._model)
                if self._orphaned(now_s):
                    return _failed(WorkerLostError("the worker that had this is gone"))
            until_s = self._end_s if self.retried else max(silent_s, now_s + _SEEK_S)
            task = await self._next(min(until_s, self._end_s))
            if task is None:
                continue
            target, reply = self._tasks.pop(task), task.result()
            if reply.error is None:
                return reply
            if target and not reply.worker and isinstance(reply.error, NoWorkerError):
                self._missed(target, last)
            else:
                last = reply
                self._again(reply)
        return _late() if self._tasks else last

    def _other(self, avoid: Collection[str], since_s: float = 0.0) -> bool:
        """Start the second attempt at another worker; False when there is none."""
        other = self._fleet.other(self._model, avoid, since_s)
        if other is None:
            return False
        self.retried = True
        self._start(self._ask(subjects.worker_chunk(other, self._model)), other)
        return True

    def _again(self, reply: ChunkReply) -> None:
        """Start the second attempt that a failed first one allows, if it does."""
        if self.retried:
            return
        if reply.worker and isinstance(reply.error, _ELSEWHERE):
            self._other((reply.worker,))
        elif not reply.worker and isinstance(reply.error, WorkerLostError):
            self.retried = True
            self._start(self._after_reconnect(reply))

    def _missed(self, target: str, last: ChunkReply) -> None:
        """The second attempt found nobody: that worker is gone, and the attempt is still free."""
        self._fleet.forget(target)
        self.retried = False
        if not self._tasks:
            self._other((*self._avoid, last.worker))

    def _orphaned(self, now_s: float) -> bool:
        """True once no worker has served the model for a while."""
        alone = not self._fleet.serving(self._model)
        self._gone_s = min(self._gone_s, now_s) if alone else math.inf
        return now_s - self._gone_s > RECONNECT_S

    async def _after_reconnect(self, lost: ChunkReply) -> ChunkReply:
        """The bus went away with the chunk. Send it again once bus and workers are back."""
        until_s = min(self._end_s, self._loop.time() + RECONNECT_S)
        reply = lost
        while self._loop.time() < until_s:
            if self._bus.is_connected:
                reply = await self._ask(subjects.chunk(self._model))
                if not isinstance(reply.error, NoWorkerError | WorkerLostError):
                    break
            await asyncio.sleep(_POLL_S)
        return reply

    def _start(self, work: Coroutine[Any, Any, ChunkReply], target: str = "") -> None:
        """target: the one worker it is meant for; empty for the queue group."""
        self._tasks[self._loop.create_task(work)] = target

    async def _ask(self, subject: str) -> ChunkReply:
        sent = await self._send(subject)
        return (
            sent if isinstance(sent, ChunkReply) else await self._answer(sent[0], subject, sent[1])
        )

    def _hand_over(self) -> tuple[Asked, float] | None:
        """Give the chunk to the worker of this process. None where there is none, or where the
        queue group may have one that is free sooner; whatever it refuses goes there, too."""
        sent_s = self._loop.time()
        left_s = self._end_s - sent_s
        if self._near is None or left_s <= 0:
            return None
        call = Awaited[ChunkReply](self._loop)
        alone = len(self._fleet.serving(self._model)) <= 1
        worker = self._near(self._chunk(left_s), call.deliver, alone=alone)
        if not worker:
            return None
        self._avoid = (worker,)  # known for once: a second attempt is for somebody else
        return call, sent_s

    async def _send(self, subject: str) -> tuple[Asked, float] | ChunkReply:
        """The call, and when it was made; or why there is none."""
        sent_s = self._loop.time()
        left_s = self._end_s - sent_s
        if left_s <= 0:
            return _late()
        try:
            call = await self._bus.ask(subject, encode_chunk(self._chunk(left_s)))
        except HedgerowError as error:
            return self._befallen(error, subject)
        self._calls.append(call)
        return call, sent_s

    async def _answer(self, call: Asked, subject: str, sent_s: float) -> ChunkReply:
        """Wait for a call to the very end."""
        answered = await call.wait(max(self._end_s - self._loop.time(), 0.0))
        return self._read(call, subject, sent_s) if answered else _late()

    def _read(self, call: Asked, subject: str, sent_s: float) -> ChunkReply:
        try:
            result = call.result()
            reply = result if isinstance(result, ChunkReply) else decode_reply(result.data)
        except HedgerowError as error:
            return self._befallen(error, subject)
        self._fleet.heard(reply.worker, reply.backlog_tokens)
        self.took_s = self._loop.time() - sent_s
        if reply.error is None:
            self._fleet.took(reply.worker, self._lane)
        elif isinstance(reply.error, OverloadedError):
            self._fleet.refused(reply.worker, self._lane, reply.error.retry_after_s or 0.0)
        return reply

    def _befallen(self, error: HedgerowError, subject: str) -> ChunkReply:
        """What the bus says of an attempt, in the words of whoever asks us."""
        if isinstance(error, NoWorkerError):
            if subject == subjects.chunk(self._model):
                self._fleet.unserved(self._model)
            return _failed(NoWorkerError(f"no worker serves model {self._model!r} at the moment"))
        # What the bus says may name a subject, which is no caller's business.
        error.message = error.message.replace(subject, f"the workers of {self._model!r}")
        return _failed(error)

    async def _next(self, until_s: float) -> asyncio.Task[ChunkReply] | None:
        """An attempt that ended; None when none has by `until_s`."""
        left_s = max(until_s - self._loop.time(), 0.0)
        done, _ = await asyncio.wait(
            self._tasks, timeout=left_s, return_when=asyncio.FIRST_COMPLETED
        )
        return next(iter(done), None)


def _failed(error: HedgerowError) -> ChunkReply:
    """A failure of ours in the form of a worker's answer; `worker` is empty."""
    return ChunkReply("", "", error=error)


def _late() -> ChunkReply:
    # A new one each time: an exception that is raised again and again keeps every frame it saw.
    return _failed(DeadlineError("no worker answered in time"))
