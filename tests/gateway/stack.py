"""A bus, workers with a fake engine, and a gateway: real processes for a module of tests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path

import httpx

from hedgerow_shared.natsserver import free_port
from tests.nats_fixture import NatsHandle, start_nats_handle

_READY_S = 60


@dataclass
class Stack:
    """What was started. `url` is the gateway's address over HTTP."""

    folder: Path
    nats: NatsHandle
    models: list[str]
    gateways: list[subprocess.Popen[bytes]] = field(default_factory=list)
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def worker(self, *args: str) -> subprocess.Popen[bytes]:
        """Start a worker with the fake engine."""
        process = self._start("hedgerow_scheduler", "worker", "--device", "fake", *args)
        self.workers.append(process)
        return process

    def gateway(self, *args: str) -> subprocess.Popen[bytes]:
        """Start a gateway; the last one started owns `port`."""
        self.port = free_port()
        process = self._start("hedgerow_gateway", "gateway", "--port", str(self.port), *args)
        self.gateways.append(process)
        return process

    def together(self, *args: str, worker: tuple[str, ...] = ()) -> subprocess.Popen[bytes]:
        """Start both in one process. args: the gateway's flags; `--port` may be among them."""
        if "--port" in args:
            self.port = int(args[args.index("--port") + 1])
        else:
            self.port = free_port()
            args = ("--port", str(self.port), *args)
        theirs = ["--nats-url", self.nats.url, *self._models(), "--device", "fake", *worker]
        process = self._start("hedgerow_together", "together", *args, "--", *theirs)
        self.workers.append(process)
        return process

    def wait(self, status: int = 200) -> None:
        """Until /health/ready answers `status`; for 200, until every worker has joined, too."""
        end = time.monotonic() + _READY_S
        while time.monotonic() < end:
            try:
                ready = httpx.get(f"{self.url}/health/ready").status_code == status
                if ready and (status != HTTPStatus.OK or self._joined() >= len(self.workers)):
                    return
            except httpx.HTTPError:
                pass
            if any(p.poll() is not None for p in self.gateways + self.workers):
                break
            time.sleep(0.05)
        raise AssertionError(f"not ready:\n{self.logs()}")

    def _joined(self) -> int:
        listed = httpx.get(f"{self.url}/v1/models").json()["data"]
        return max(model["workers"] for model in listed)

    def logs(self) -> str:
        files = sorted(self.folder.glob("*.log"))
        return "\n".join(f"--- {f.name}\n{f.read_text()[-3000:]}" for f in files)

    def stop(self) -> None:
        for process in self.gateways + self.workers:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.terminate()
        for process in self.gateways + self.workers:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.nats.stop()

    def _models(self) -> list[str]:
        return [flag for model in self.models for flag in ("--model", model)]

    def _start(self, module: str, name: str, *args: str) -> subprocess.Popen[bytes]:
        number = len(list(self.folder.glob(f"{name}*.log")))
        env = {**os.environ, "HEDGEROW_DIE_WITH_PARENT": "1", "HEDGEROW_LOG_LEVEL": "info"}
        with (self.folder / f"{name}{number}.log").open("wb") as log:
            return subprocess.Popen(
                [sys.executable, "-m", module, "--nats-url", self.nats.url, *self._models(), *args],
                stderr=log,
                env=env,
            )


@contextmanager
def running_stack(folder: Path, *models: str) -> Iterator[Stack]:
    """models: ALIAS=FOLDER. Starts the bus only; the caller starts what it needs."""
    folder.mkdir(parents=True, exist_ok=True)
    stack = Stack(folder, start_nats_handle(folder / "nats", jetstream=False), list(models))
    try:
        yield stack
    finally:
        stack.stop()
