"""Fixtures of the whole path: real processes, one `hedgerow up` per test."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.system.up_process import Up

ROOT = Path(__file__).parents[2]


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


@pytest.fixture(scope="session")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the sdist of this tree, built as a release is."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return folder
