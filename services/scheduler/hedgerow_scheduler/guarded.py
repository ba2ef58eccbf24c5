"""The event loop as a worker uses it, with an eye on what its turns raise."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Guarded:
    """The loop for a worker's turns: one that raises has left wrong books behind."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, on_error: Callable[[Exception], None]
    ) -> None:
        self._loop, self._on_error = loop, on_error

    def call_soon(self, callback: Callable[[], object], /) -> object:
        return self._loop.call_soon(self._run, callback)

    def call_soon_threadsafe(self, callback: Callable[[], object], /) -> object:
        return self._loop.call_soon_threadsafe(self._run, callback)

    def _run(self, callback: Callable[[], object]) -> None:
        try:
            callback()
        except Exception as error:  # noqa: BLE001 - whatever it is, this worker is done
            self._on_error(error)
