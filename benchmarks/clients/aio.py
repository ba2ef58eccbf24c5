"""Many keep-alive HTTP connections on one event loop, for concurrent and paced load."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar, cast

from benchmarks.clients.http import Response, ResponseReader

T = TypeVar("T")


class _Connection(asyncio.Protocol):
    """One connection with at most one request in flight."""

    def __init__(self) -> None:
        self._reader = ResponseReader()
        self._waiting: asyncio.Future[Response] | None = None
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports satisfy asyncio.Transport without being a subclass of it.
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        response = self._reader.feed(data)
        if response is not None and self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(response)

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(ConnectionResetError(str(exc or "closed by the server")))

    def exchange(self, request: bytes) -> asyncio.Future[Response]:
        assert self.transport is not None
        self._waiting = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        return self._waiting


class HttpPool:
    """As many connections as there are requests in flight; idle ones are used again."""

    def __init__(self, host: str, port: int) -> None:
        self._address = (host, port)
        self._idle: list[_Connection] = []

    async def exchange(self, request: bytes) -> Response:
        """Send on an idle connection (or a new one) and wait. Raises OSError when cut off."""
        connection = self._pop()
        if connection is None:
            loop = asyncio.get_running_loop()
            _, connection = await loop.create_connection(_Connection, *self._address)
        response = await connection.exchange(request)
        self._idle.append(connection)
        return response

    def _pop(self) -> _Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.transport is not None:
                return connection
        return None

    def close(self) -> None:
        for connection in self._idle:
            if connection.transport is not None:
                connection.transport.close()
        self._idle.clear()


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run on uvloop where it is installed, else on asyncio's own loop."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    return uvloop.run(main)
