"""Messages from the reader to a handler: in order, in slices, and never more than a limit."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from hedgerow_shared.bus.message import Message

_SLICE = 64
"""Messages handled before the loop may do something else."""

_log = logging.getLogger("hedgerow.bus")

Leave: TypeAlias = Callable[[bool], Awaitable[None]]
"""Ends the interest; True: only after the server has sent what it had begun to send."""


class Pending:
    """What waits between the reader and the handler.

    The newest message over a limit is dropped and `on_dropped` gets its reply subject, so
    that its sender can be told at once.
    """

    def __init__(
        self,
        handler: Callable[[Message], None],
        *,
        max_msgs: int,
        max_bytes: int,
        on_dropped: Callable[[str], None] | None,
    ) -> None:
        self._handler = handler
        self._max_msgs = max_msgs
        self._max_bytes = max_bytes
        self._on_dropped = on_dropped
        self._queue: deque[Message] = deque()
        self._bytes = 0
        self._scheduled = False
        self._loop = asyncio.get_running_loop()
        self._empty: asyncio.Future[None] | None = None
        self.dropped = 0

    def take(self, message: Message) -> None:
        """Queue one message, or drop it."""
        size = len(message.data)
        if len(self._queue) >= self._max_msgs or self._bytes + size > self._max_bytes:
            self.dropped += 1
            if self._on_dropped is not None:
                self._on_dropped(message.reply)
            return
        self._queue.append(message)
        self._bytes += size
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        queue = self._queue
        for _ in range(min(_SLICE, len(queue))):
            message = queue.popleft()
            self._bytes -= len(message.data)
            try:
                self._handler(message)
            except Exception:  # noqa: BLE001 - outermost: one bad message must not stop the rest
                _log.exception("bus: handler of %s failed", message.subject)
        self._scheduled = bool(queue)
        if queue:
            self._loop.call_soon(self._run)
        elif self._empty is not None and not self._empty.done():
            self._empty.set_result(None)

    async def empty(self) -> None:
        """Return once every queued message was handed to the handler."""
        if self._scheduled:
            self._empty = self._empty or self._loop.create_future()
            await self._empty
            self._empty = None

    def clear(self) -> None:
        self._queue.clear()
        self._bytes = 0


class Subscription:
    """Interest in one subject. Made by `Bus.subscribe`."""

    def __init__(self, subject: str, queue: str, pending: Pending, leave: Leave) -> None:
        self.subject = subject
        self.queue = queue
        self._pending = pending
        self._leave = leave
        self._open = True

    @property
    def dropped(self) -> int:
        """Messages lost to the pending limits so far."""
        return self._pending.dropped

    async def unsubscribe(self) -> None:
        """Stop at once; what still waits for the handler is thrown away."""
        if self._open:
            self._open = False
            self._pending.clear()
            await self._leave(False)

    async def drain(self) -> None:
        """Stop, after everything the server had already sent us reached the handler."""
        if self._open:
            self._open = False
            await self._leave(True)
            await self._pending.empty()
