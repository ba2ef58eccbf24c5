"""Servers with the rules under test, and buses that come in as one of the roles."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest

from hedgerow_shared.bus import Bus
from tests.security.guarded import Guarded, embedded, production

KINDS = {"embedded": embedded, "production": production}
Join = Callable[[str], Awaitable[Bus]]


@pytest.fixture(scope="module", params=list(KINDS))
def guarded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Guarded]:
    found = KINDS[request.param](tmp_path_factory.mktemp(request.param))
    yield found
    found.server.stop(5)


@pytest.fixture
async def join(guarded: Guarded) -> AsyncIterator[Join]:
    """`await join("worker")`: a bus of that role, closed when the test ends."""
    buses: list[Bus] = []

    async def make(role: str) -> Bus:
        buses.append(await Bus.connect(guarded.options(role)))
        return buses[-1]

    yield make
    for bus in buses:
        await bus.close(patience_s=0)
