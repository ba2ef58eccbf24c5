"""The socket under nats-py: no plain text where TLS is due, and no wait for a dead peer."""

from __future__ import annotations

import asyncio
import socket
from typing import Any
from urllib.parse import ParseResult

from nats.aio.transport import TcpTransport

CLOSE_WAIT_S = 1.0
USER_TIMEOUT_S = 10.0
_ROOM_BYTES = 256 * 1024
_KEEPALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 2}


class Transport(TcpTransport):
    """nats-py awaits wait_closed() before it reconnects, and after a partition the kernel takes
    minutes to give up on unsent bytes (nats.py issue 671). Here that wait is bounded."""

    def __init__(self, *, must_encrypt: bool) -> None:
        super().__init__()
        self._must_encrypt = must_encrypt
        self._encrypted = False

    def __bool__(self) -> bool:
        # nats-py replaces a transport that is falsy, and its own is so until it connects.
        return True

    async def connect(self, uri: ParseResult, buffer_size: int, connect_timeout: int) -> None:
        self._encrypted = False
        await super().connect(uri, buffer_size, connect_timeout)
        assert self._io_writer is not None, "super().connect sets it or raises"
        _tune(self._io_writer.get_extra_info("socket"))

    async def connect_tls(self, *args: Any, **kwargs: Any) -> None:
        await super().connect_tls(*args, **kwargs)
        self._encrypted = True

    def write(self, payload: bytes) -> None:
        if self._must_encrypt and not self._encrypted:
            raise ConnectionError("the server offers no TLS, and TLS was asked for")
        super().write(payload)

    @property
    def has_room(self) -> bool:
        """True while the kernel keeps up, so that writing more needs no waiting."""
        writer = self._io_writer
        return writer is not None and writer.transport.get_write_buffer_size() < _ROOM_BYTES

    async def wait_closed(self) -> None:
        writer = self._io_writer
        if writer is None:
            return
        waiter = asyncio.ensure_future(writer.wait_closed())
        done, _ = await asyncio.wait({waiter}, timeout=CLOSE_WAIT_S)
        if not done:
            writer.transport.abort()
            waiter.cancel()
        elif not waiter.cancelled():
            waiter.exception()  # marks it as seen; a connection that is going away may fail


def _tune(sock: Any) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, seconds in _KEEPALIVE.items():
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), seconds)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        ms = int(USER_TIMEOUT_S * 1000)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, ms)
