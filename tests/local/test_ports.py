from __future__ import annotations

import asyncio
import os
import socket
import sys

import pytest

from hedgerow_local import ports
from hedgerow_shared.natsserver import free_port


@pytest.fixture
def listener():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_a_port_with_a_listener_is_not_free(listener):
    assert not ports.is_free("127.0.0.1", listener)
    assert ports.is_free("127.0.0.1", free_port())


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_the_process_that_holds_a_port_is_named(listener):
    assert f"(pid {os.getpid()})" in ports.holder(listener)
    assert ports.holder(free_port()) == ""


def test_an_address_of_another_machine_is_an_error():
    with pytest.raises(OSError):
        ports.is_free("192.0.2.1", 8080)


async def test_waiting_ends_when_somebody_listens_or_the_time_is_over(listener):
    assert await ports.wait_listening("127.0.0.1", listener, 1.0)
    assert not await ports.wait_listening("127.0.0.1", free_port(), 0.1)


async def test_waiting_sees_a_server_that_comes_late():
    port = free_port()
    waiting = asyncio.create_task(ports.wait_listening("127.0.0.1", port, 5.0))
    await asyncio.sleep(0.1)
    server = await asyncio.start_server(lambda r, w: w.close(), "127.0.0.1", port)
    assert await waiting
    server.close()
