"""The HTTP port, given up without resetting a connection that somebody just opened.

Closing a listening socket resets what the kernel has accepted for it and the program has not, even
where another process listens on the same port. So on Linux a socket filter first turns away new
connections (their SYN is dropped and comes again a second later, to whoever listens then), what is
in the queue is accepted, and only then is the socket closed. Elsewhere it is just closed.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import socket
import struct
import sys
from collections.abc import Sequence
from typing import Any

from aiohttp import web

from hedgerow_shared.errors import StartupError

_BACKLOG = 1024
_HANDSHAKE_S = 0.05
"""How long a handshake that was under way may take to reach the queue; a slower one is reset."""
_EMPTY_S = 1.0
"""How long the queue may take to empty; a loop that is busy longer resets the rest."""
_POLL_S = 0.005

_SO_ATTACH_FILTER = 26  # asm-generic/socket.h; Python has no name for it
_UNACKED = 24  # struct tcp_info: of a listening socket, how many wait to be accepted
_TCP_INFO_BYTES = 104
_NO_SYN = (
    # Classic BPF over the TCP header: byte 13 holds the flags, 2 is SYN.
    (0x30, 0, 0, 13),  # load byte 13
    (0x45, 0, 1, 2),  # if SYN is set go on, else skip one
    (0x06, 0, 0, 0),  # drop
    (0x06, 0, 0, 0xFFFFFFFF),  # keep the packet
)


class _Site(web.TCPSite):
    def sockets(self) -> Sequence[socket.socket]:
        server: Any = self._server
        return () if server is None else server.sockets


class Listener:
    """Listens on host:port for an application runner that was set up."""

    def __init__(
        self, runner: web.AppRunner, host: str, port: int, *, reuse_port: bool = False
    ) -> None:
        self._where = f"{host}:{port}"
        self._site = _Site(runner, host, port, backlog=_BACKLOG, reuse_port=reuse_port or None)

    async def open(self) -> None:
        """Raises StartupError (one line) when the address cannot be had."""
        try:
            await self._site.start()
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                text = f"{self._where} is taken by another program; choose another with --port"
            else:
                text = f"cannot listen on {self._where} ({error.strerror}); see --host and --port"
            raise StartupError(text) from None

    async def close(self) -> None:
        """Take no new connection, but every one that was already made."""
        sockets = [s for s in self._site.sockets() if turn_away(s)]
        if sockets:
            await asyncio.sleep(_HANDSHAKE_S)
            end_s = asyncio.get_running_loop().time() + _EMPTY_S
            while any(map(waiting, sockets)) and asyncio.get_running_loop().time() < end_s:
                await asyncio.sleep(_POLL_S)
        await self._site.stop()


def turn_away(listening: socket.socket) -> bool:
    """Have the kernel drop new connections to this socket; False where it cannot."""
    if not sys.platform.startswith("linux"):
        return False
    program = b"".join(struct.pack("HBBI", *step) for step in _NO_SYN)
    memory = ctypes.create_string_buffer(program)
    filter_ = struct.pack("HP", len(_NO_SYN), ctypes.addressof(memory))
    try:
        listening.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, filter_)
    except OSError:
        return False
    return True


def waiting(listening: socket.socket) -> int:
    """Connections that are made and not yet accepted (Linux)."""
    info = listening.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
    return struct.unpack_from("I", info, _UNACKED)[0]
