"""A port that is given up: whoever had connected is answered, whoever had not goes elsewhere."""

from __future__ import annotations

import asyncio
import socket
import sys

import pytest
from aiohttp import web

from hedgerow_gateway.routes.listener import Listener, turn_away, waiting
from hedgerow_shared.natsserver import free_port

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a filter of Linux")
REQUEST = b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"


async def serving(port: int, text: str) -> tuple[web.AppRunner, Listener]:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(text=text)

    app = web.Application()
    app.router.add_get("/", answer)
    runner = web.AppRunner(app, shutdown_timeout=2)
    await runner.setup()
    listener = Listener(runner, "127.0.0.1", port, reuse_port=True)
    await listener.open()
    return runner, listener


def connected(port: int) -> socket.socket:
    """By the kernel alone: the server's loop does not run meanwhile."""
    return socket.create_connection(("127.0.0.1", port), timeout=5)


async def asked(one: socket.socket) -> bytes:
    def ask() -> bytes:
        with one:
            one.sendall(REQUEST)
            return b"".join(iter(lambda: one.recv(4096), b""))

    return await asyncio.to_thread(ask)


@linux
async def test_what_waits_in_the_queue_is_served_before_the_port_is_closed():
    port = free_port()
    runner, listener = await serving(port, "here")
    queued = [connected(port) for _ in range(40)]
    await listener.close()
    answers = await asyncio.gather(*map(asked, queued))
    assert all(a.startswith(b"HTTP/1.1 200") for a in answers)
    with pytest.raises(ConnectionRefusedError):
        connected(port)
    await runner.cleanup()


@linux
async def test_whoever_comes_while_it_closes_is_served_by_the_other_process():
    port = free_port()
    first, leaving = await serving(port, "leaving")
    second, staying = await serving(port, "staying")
    closing = asyncio.create_task(leaving.close())
    await asyncio.sleep(0)  # from here on it turns everybody away
    late = await asyncio.gather(*(asyncio.to_thread(connected, port) for _ in range(30)))
    answers = await asyncio.gather(*map(asked, late))
    assert all(a.endswith(b"staying") for a in answers)
    await closing
    await staying.close()
    await asyncio.gather(first.cleanup(), second.cleanup())


@linux
def test_a_filter_drops_what_begins_and_keeps_what_waits():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        before = connected(port)
        assert waiting(listening) == 1
        assert turn_away(listening)
        with pytest.raises(TimeoutError):
            socket.create_connection(("127.0.0.1", port), timeout=0.2)
        accepted, _ = listening.accept()
        before.sendall(b"still here")
        assert accepted.recv(99) == b"still here"
        assert waiting(listening) == 0
        before.close()
        accepted.close()
