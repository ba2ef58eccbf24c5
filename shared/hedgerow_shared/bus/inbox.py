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

from hedgerow_shared.awaited import Awaited
from hedgerow_shared.bus.message import NO_HEADERS, Message
from hedgerow_shared.errors import HedgerowError, NoWorkerError


class Waiting(Protocol):
    """A caller of `request` or `request_many` while its answer is on the way."""

    subject: str

    def deliver(self, message: Message, /) -> None: ...

    def fail(self, error: HedgerowError) -> None: ...


class Call(Awaited[Message]):
    """One request, one reply."""

    __slots__ = ("_inbox", "reply", "subject")

    def __init__(self, subject: str, inbox: Inbox, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.subject = subject
        self._inbox = inbox
        self.reply = inbox.open(self)

    def result(self) -> Message:
        """The reply; raises what befell the request, NoWorkerError where nobody listened."""
        message = super().result()
        if message.headers is not NO_HEADERS and is_no_responders(message):
            raise NoWorkerError(f"nobody listens on {self.subject}")
        return message

    def close(self) -> None:
        """Take no reply any more."""
        self._inbox.close(self.reply)


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
