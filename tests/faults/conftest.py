"""Rigs for the fault tests: `rig()` starts a bus, the test starts what it needs on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.faults.rig import Rig, running_rig
from tests.gateway.conftest import train_wordpiece, write_model


@pytest.fixture(scope="session")
def toy(tmp_path_factory: pytest.TempPathFactory) -> str:
    """`toy=FOLDER`: a model of a few JSON files, enough for a gateway and fake workers."""
    return f"toy={write_model(tmp_path_factory.mktemp('toy') / 'm', train_wordpiece())}"


@pytest.fixture
def rig(tmp_path: Path, toy: str) -> Iterator[Callable[..., Rig]]:
    """`rig(workers=[flags, ...], gateways=[flags, ...], extra="")`, ready to serve."""
    with ExitStack() as stack:

        def start(
            *,
            workers: tuple[tuple[str, ...], ...] = ((),),
            gateways: tuple[tuple[str, ...], ...] = ((),),
            extra: str = "",
        ) -> Rig:
            made = stack.enter_context(running_rig(tmp_path / "rig", toy, extra=extra))
            for flags in workers:
                made.worker(*flags)
            for flags in gateways:
                made.gateway(*flags)
            if gateways:
                made.wait()
            return made

        yield start
