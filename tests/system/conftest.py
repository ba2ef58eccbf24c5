"""Fixtures of the whole path: real processes, one `hedgerow up` per test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.system.up_process import Up


@pytest.fixture
def start_up(tmp_path: Path) -> Iterator[Callable[..., Up]]:
    """`start_up("--device", "fake", ready=True, env={})`; stopped when the test ends."""
    running: list[Up] = []

    def start(*flags: str, ready: bool = True, env: dict[str, str] | None = None) -> Up:
        folder = tmp_path / f"up{len(running)}"
        folder.mkdir()
        up = Up(folder, *flags, env=env)
        running.append(up)
        return up.wait_ready() if ready else up

    yield start
    for up in running:
        up.stop()
