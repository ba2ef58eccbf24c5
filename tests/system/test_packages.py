"""Wheel and sdist as a stranger gets them: built, installed in a clean environment, used."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tarfile
import time
import urllib.error
import urllib.request
import venv
import zipfile
from pathlib import Path

import pytest

from hedgerow_shared import __version__
from hedgerow_shared.natsserver import free_port

pytestmark = [pytest.mark.slow, pytest.mark.system]

ROOT = Path(__file__).parents[2]
PACKAGES = ("shared", "gateway", "scheduler", "engine", "together", "local")


@pytest.fixture(scope="module")
def gateway_python(dist, tmp_path_factory) -> Path:
    """The Python of a clean environment that holds `hedgerow[gateway]` and nothing else."""
    folder = tmp_path_factory.mktemp("clean") / "venv"
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    wheel = next(dist.glob("*.whl"))
    command = [str(python), "-m", "pip", "install", "-q", "-c", str(ROOT / "constraints.txt")]
    done = subprocess.run([*command, f"{wheel}[gateway]"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return python


def clean_env() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith(("HEDGEROW_", "PYTHON"))}


def run(python: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(python), *arguments], capture_output=True, text=True, env=clean_env(), cwd="/"
    )


def test_the_wheel_holds_every_package_and_nothing_else(dist):
    names = zipfile.ZipFile(next(dist.glob("*.whl"))).namelist()
    tops = {name.split("/")[0] for name in names}
    expected = {f"hedgerow_{name}" for name in PACKAGES} | {f"hedgerow-{__version__}.dist-info"}
    assert tops == expected
    assert {f"hedgerow_{name}/py.typed" for name in PACKAGES} <= set(names)


def test_the_sdist_can_be_built_from_and_tells_its_licence(dist):
    with tarfile.open(next(dist.glob("*.tar.gz"))) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    assert {"LICENSE", "README.md", "pyproject.toml", "shared/hedgerow_shared/wire.py"} <= names
    assert not [name for name in names if name.startswith((".venv", ".hedgerow"))]


def test_the_command_tells_its_version_and_what_it_lacks(gateway_python):
    command = gateway_python.parent / "hedgerow"
    done = subprocess.run([str(command), "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"hedgerow {__version__}\n")
    done = subprocess.run([str(command), "up"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "pip install 'hedgerow[local]'" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_gateway_without_torch_serves_a_request(
    gateway_python, nats_server, minilm_folder, tmp_path
):
    """The gateway runs in the clean environment; the worker (a fake engine) in this one."""
    assert run(gateway_python, "-c", "import torch").returncode != 0
    port = free_port()
    common = ["--nats-url", nats_server.url, "--model", f"packed-{port}={minilm_folder}"]
    gateway = [str(gateway_python), "-m", "hedgerow_gateway", "--port", str(port), *common]
    worker = [sys.executable, "-m", "hedgerow_scheduler", "--device", "fake", *common]
    log = (tmp_path / "log").open("wb")
    with contextlib.ExitStack() as stack:
        for command, folder in ((gateway, "/"), (worker, str(ROOT))):
            process = subprocess.Popen(command, stdout=log, stderr=log, env=clean_env(), cwd=folder)
            stack.callback(process.wait, 40)
            stack.callback(process.terminate)
        vector = first_vector(f"http://127.0.0.1:{port}/v1/embeddings")
    log.close()
    assert len(vector) == 384, (tmp_path / "log").read_text()


def first_vector(url: str) -> list[float]:
    body = json.dumps({"input": "hello"}).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    end = time.monotonic() + 30
    while True:
        try:
            with urllib.request.urlopen(request, timeout=10) as reply:
                return json.load(reply)["data"][0]["embedding"]
        except (urllib.error.URLError, OSError):
            assert time.monotonic() < end, "no answer"
            time.sleep(0.2)
