"""What a second `hedgerow up` is told, and the order in which models are listed."""

from __future__ import annotations

import os
import re
import socket

import pytest

from hedgerow_local.options import UpOptions
from hedgerow_local.ready import engines
from hedgerow_local.state import DataDir, Running
from hedgerow_local.up import choose_http_port, choose_nats_port
from hedgerow_shared.errors import StartupError


@pytest.fixture
def busy():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def announced(folder, http_port: int, nats_port: int) -> None:
    running = Running(os.getpid(), f"nats://127.0.0.1:{nats_port}", f"http://127.0.0.1:{http_port}")
    DataDir(folder).announce(running)


def test_a_port_that_our_own_holds_is_said_to_be_a_hedgerows(tmp_path, busy):
    announced(tmp_path, http_port=busy, nats_port=1)
    options = UpOptions(port=busy, data_dir=tmp_path)
    flags = re.escape(f"--data-dir {tmp_path}2 --port 0")
    with pytest.raises(
        StartupError, match=rf"taken by a hedgerow that runs \(pid {os.getpid()}\).*{flags}"
    ):
        choose_http_port(options)


def test_a_port_that_somebody_else_holds_is_not(tmp_path, busy):
    announced(tmp_path, http_port=1, nats_port=1)
    with pytest.raises(StartupError, match="--port 8080") as caught:
        choose_http_port(UpOptions(port=busy, data_dir=tmp_path))
    assert "a hedgerow" not in str(caught.value)


def test_a_nats_port_that_our_own_holds_is_said_to_be_a_hedgerows(tmp_path, busy):
    announced(tmp_path, http_port=1, nats_port=busy)
    with pytest.raises(StartupError, match=rf"a hedgerow that runs \(pid {os.getpid()}\)"):
        choose_nats_port(UpOptions(nats_port=busy, data_dir=tmp_path))


def test_engines_are_listed_in_the_order_of_the_models():
    models = {
        alias: {"engine": {"executor": executor, "dtype": "float32"}}
        for alias, executor in (("a", "native"), ("z", "packed"), ("m", "native"))
    }
    said = [{"endpoints": [{"data": {"models": models}}]}] * 2
    assert engines(said, ["z", "a"]) == [
        "z: packed, float32",
        "a: native, float32",
        "m: native, float32",
    ]
