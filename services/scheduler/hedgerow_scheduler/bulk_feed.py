"""Pulls bulk chunks while there is room for them, and never more than the room holds."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence

from hedgerow_shared.bus.jetstream_pull import Pull
from hedgerow_shared.errors import RetryableError

FETCH_S = 2.0
_LOOK_S = 0.25
_AWAY_S = 1.0
_MAX_BATCH = 16
_SMOOTHING = 1 / 16


class Feed:
    """One loop per model. room: tokens that may be pulled now; 0 or less: none.

    How many chunks that is, is guessed from the size of those that came lately. Each model asks
    for its share of the room, so that what is on the way fits together, too.
    """

    def __init__(self, pulls: Sequence[Pull], room: Callable[[], float]) -> None:
        self._pulls, self._room = pulls, room
        self._tokens_per_chunk = 4096.0
        self._waiting = 0
        self._changed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Raises what `Bus.subscribe` raises."""
        for pull in self._pulls:
            await pull.start()
        self._tasks = [asyncio.create_task(self._feed(pull)) for pull in self._pulls]

    def halt(self) -> None:
        """Ask for nothing more, from this moment."""
        for task in self._tasks:
            task.cancel()

    async def stop(self) -> None:
        """Ask for nothing more; returns once all that was on the way has arrived."""
        self.halt()
        with contextlib.suppress(RetryableError):
            await asyncio.gather(*(pull.stop() for pull in self._pulls))

    def saw(self, num_tokens: int) -> None:
        """A chunk of this size came."""
        self._tokens_per_chunk += _SMOOTHING * (num_tokens - self._tokens_per_chunk)

    def look(self) -> None:
        """Something was started or finished: there may be room. Called at every turn."""
        if self._waiting and self._room() > 0:
            self._changed.set()

    async def _feed(self, pull: Pull) -> None:
        while True:
            room = self._room()
            if room <= 0:
                await self._until_room()
                continue
            share = room / len(self._pulls)
            batch = min(max(round(share / self._tokens_per_chunk), 1), _MAX_BATCH)
            why = await pull.fetch(batch, expires_s=FETCH_S)
            if why in ("503", "409"):
                await asyncio.sleep(_AWAY_S)

    async def _until_room(self) -> None:
        self._waiting += 1
        self._changed.clear()
        try:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), _LOOK_S)
        finally:
            self._waiting -= 1
