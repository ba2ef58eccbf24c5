"""One value that comes later, waited for with patience that may run out and begin again."""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

from hedgerow_shared.errors import HedgerowError

T = TypeVar("T")


class Awaited(Generic[T]):
    """The first value or error counts; later ones (of a retry, of a duplicate) are dropped.

    It is waited for by one task at a time, as often as that likes: who looks after a short while
    whether an answer is there, and then goes on waiting, loses nothing.
    """

    __slots__ = ("_error", "_loop", "_value", "_waiter")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._value: T | None = None
        self._error: HedgerowError | None = None
        self._waiter: asyncio.Future[None] | None = None

    def deliver(self, value: T) -> None:
        if not self.settled:
            self._value = value
            self._wake()

    def fail(self, error: HedgerowError) -> None:
        if not self.settled:
            self._error = error
            self._wake()

    @property
    def settled(self) -> bool:
        return self._value is not None or self._error is not None

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

    def result(self) -> T:
        """The value; raises the error."""
        if self._error is not None:
            raise self._error
        assert self._value is not None, "only a settled one has a result"
        return self._value

    def close(self) -> None:
        """Nobody waits any more."""

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
