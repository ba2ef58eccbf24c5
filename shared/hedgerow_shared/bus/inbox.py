"""Our own reply inbox: one wildcard subscription, one waiting call per request.

nats-py's request() leaves its callers waiting for their whole timeout when the connection
dies, loses replies when its queue overflows, and dies with nc.drain(). This one is told.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Callable, Iterable
from typing import Protocol

from hedgerow_shared.bus.message import NO_HEADERS, Message
from hedgerow_shared.errors import HedgerowError, NoWorkerError


class Waiting(Protocol):
    """A caller of `request` or `request_many` while its answer is on the way."""

    subject: str

    def deliver(self, message: Message) -> None: ...

    def fail(self, error: HedgerowError) -> None: ...


class Call:
    """One request, one reply; later replies (of a retry, of a duplicate) are dropped.

    It is waited for by one task at a time, as often as that likes: who looks after a short while
    whether an answer is there, and then goes on waiting, loses nothing.
    """

    __slots__ = ("_error", "_inbox", "_loop", "_message", "_waiter", "reply", "subject")

    def __init__(self, subject: str, inbox: Inbox, loop: asyncio.AbstractEventLoop) -> None:
        self.subject = subject
        self._inbox, self._loop = inbox, loop
        self._message: Message | None = None
        self._error: HedgerowError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self.reply = inbox.open(self)

    def deliver(self, message: Message) -> None:
        if not self.settled:
            self._message = message
            self._wake()

    def fail(self, error: HedgerowError) -> None:
        if not self.settled:
            self._error = error
            self._wake()

    @property
    def settled(self) -> bool:
        return self._message is not None or self._error is not None

    async def wait(self, timeout_s: float) -> bool:
        """True as soon as `result` has something to say; False after `timeout_s`."""
        if not self.settled:
            self._waiter = self._loop.create_future()
            timer = self._loop.call_later(timeout_s, self._wake)
            try:
                await self._waiter
            finally:
                timer.cancel()
                self._waiter = None
        return self.settled

    def result(self) -> Message:
        """The reply; raises what befell the request, NoWorkerError where nobody listened."""
        if self._error is not None:
            raise self._error
        assert self._message is not None, "only a settled call has a result"
        if self._message.headers is not NO_HEADERS and is_no_responders(self._message):
            raise NoWorkerError(f"nobody listens on {self.subject}")
        return self._message

    def close(self) -> None:
        """Take no reply any more."""
        self._inbox.close(self.reply)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Gather:
    """One request, many replies: done at `limit`, after the one of which `is_last` says so, by
    `fail`, or when its owner stops waiting."""

    __slots__ = ("done", "is_last", "limit", "replies", "subject")

    def __init__(
        self,
        subject: str,
        limit: int | None,
        done: asyncio.Future[None],
        is_last: Callable[[Message], bool] | None = None,
    ) -> None:
        self.subject = subject
        self.limit = limit
        self.done = done
        self.is_last = is_last
        self.replies: list[Message] = []

    def deliver(self, message: Message) -> None:
        if self.done.done():
            return
        if is_no_responders(message):
            self.done.set_result(None)
            return
        self.replies.append(message)
        full = self.limit is not None and len(self.replies) >= self.limit
        if full or (self.is_last is not None and self.is_last(message)):
            self.done.set_result(None)

    def fail(self, error: HedgerowError) -> None:
        if not self.done.done():
            self.done.set_exception(error)


class Inbox:
    """Maps reply subjects to waiting calls. Knows no socket and no clock."""

    def __init__(self, prefix: str) -> None:
        self.prefix = f"{prefix}.{secrets.token_hex(11)}."
        self._tokens = itertools.count(1)
        self._waiting: dict[str, Waiting] = {}

    @property
    def wildcard(self) -> str:
        return self.prefix + "*"

    @property
    def in_flight(self) -> int:
        return len(self._waiting)

    def open(self, waiting: Waiting) -> str:
        """Register a caller; returns the reply subject to send along."""
        reply = f"{self.prefix}{next(self._tokens):x}"
        self._waiting[reply] = waiting
        return reply

    def close(self, reply: str) -> None:
        self._waiting.pop(reply, None)

    def deliver(self, message: Message) -> None:
        waiting = self._waiting.get(message.subject)
        if waiting is not None:
            waiting.deliver(message)

    def fail_all(self, error: Callable[[], HedgerowError]) -> None:
        _fail(self._waiting.values(), error)

    def fail_subject(self, subject: str, error: Callable[[], HedgerowError]) -> None:
        """Fail every call sent to a subject, in any case: nats-py lowers the server's text."""
        lower = subject.lower()
        _fail((w for w in self._waiting.values() if w.subject.lower() == lower), error)


def _fail(calls: Iterable[Waiting], error: Callable[[], HedgerowError]) -> None:
    # One exception object each: raised in several tasks, a shared one mixes their tracebacks.
    for call in list(calls):
        call.fail(error())


def is_no_responders(message: Message) -> bool:
    """True for the server's own answer when nobody listens on the subject."""
    return not message.data and message.headers.get("Status") == "503"
