"""One chunk on its way: the first attempt, perhaps a second one elsewhere, whichever answers."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Coroutine
from typing import Any, Protocol

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
_ELSEWHERE = (OverloadedError, NoWorkerError, WorkerLostError)


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
        self._tasks: dict[asyncio.Task[ChunkReply], str] = {}
        self._gone_s = math.inf
        self.retried = False

    @property
    def outstanding(self) -> bool:
        return bool(self._tasks)

    async def run(self, attempt_s: float) -> ChunkReply:
        """Try the queue group; after `attempt_s` of silence, or a refusal, one other worker.

        Nobody knows which worker has the first attempt, so the second goes to one that has said
        something since: that one is not it. Meanwhile the first may still answer.
        """
        sent_s = self._loop.time()
        silent_s, last = sent_s + attempt_s, _LATE
        self._start(self._ask(subjects.chunk(self._model)))
        try:
            while self._tasks and (now_s := self._loop.time()) < self._end_s:
                if not self.retried and now_s >= silent_s and not self._other((), sent_s):
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
            return _LATE if self._tasks else last
        finally:
            for task in self._tasks:
                task.cancel()

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
            self._other((last.worker,))

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
        left_s = self._end_s - self._loop.time()
        if left_s <= 0:
            return _LATE
        try:
            message = await self._bus.request(subject, self._encode(left_s), timeout_s=left_s)
            reply = decode_reply(message.data)
        except NoWorkerError:
            if subject == subjects.chunk(self._model):
                self._fleet.unserved(self._model)
            return _failed(NoWorkerError(f"no worker serves model {self._model!r} at the moment"))
        except DeadlineError:
            return _LATE
        except HedgerowError as error:
            # What the bus says may name a subject, which is no caller's business.
            error.message = error.message.replace(subject, f"the workers of {self._model!r}")
            return _failed(error)
        self._fleet.heard(reply.worker, reply.backlog_tokens)
        return reply

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


_LATE = _failed(DeadlineError("no worker answered in time"))
