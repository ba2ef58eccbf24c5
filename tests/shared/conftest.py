"""Buses for the tests of shared/bus: connected to a server of the test's choice, closed after."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import uvloop

from hedgerow_shared.bus import Bus, BusOptions

LOOPS = {"asyncio": asyncio.DefaultEventLoopPolicy, "uvloop": uvloop.EventLoopPolicy}
Connect = Callable[..., Awaitable[Bus]]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tests with a real connection run on both event loops: services run on uvloop."""
    if "connect" in metafunc.fixturenames or "start_nats" in metafunc.fixturenames:
        metafunc.fixturenames.append("event_loop_policy")
        metafunc.parametrize(
            "event_loop_policy", [p() for p in LOOPS.values()], ids=list(LOOPS), indirect=False
        )


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    """`await connect(url, on_closed=..., **options)` -> Bus; closed when the test ends."""
    buses: list[Bus] = []

    async def make(url: str, *, on_closed: Callable[[], None] | None = None, **options) -> Bus:
        bus = await Bus.connect(BusOptions(url, **options), on_closed=on_closed)
        buses.append(bus)
        return bus

    yield make
    await asyncio.gather(*(bus.close(patience_s=0) for bus in buses))


@pytest.fixture
def echo(connect: Connect) -> Callable[..., Awaitable[Bus]]:
    """`await echo(url, subject)`: a bus that answers every message with its own bytes."""

    async def make(url: str, subject: str, **options) -> Bus:
        bus = await connect(url, **options)
        await bus.subscribe(subject, lambda m: bus.publish_nowait(m.reply, m.data), queue="echo")
        await bus.barrier()
        return bus

    return make
