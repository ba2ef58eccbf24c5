"""Starts a server for a benchmark, waits until it says it is ready, and ends it for certain."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.harness import say
from benchmarks.machine import ROOT
from benchmarks.target import Target

READY_WITHIN_S = 120.0


class NotStartedError(Exception):
    """A server ended or stayed silent instead of becoming ready. Holds its last lines."""


def free_port() -> int:
    """A loopback port nobody listens on at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(slots=True)
class Process:
    """A child with its output read by a thread, so that it never blocks on a full pipe."""

    command: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    _child: subprocess.Popen[str] | None = None

    def start(self) -> None:
        self._child = subprocess.Popen(
            list(self.command),
            cwd=ROOT,
            env={**os.environ, **self.env},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._child is not None and self._child.stdout is not None
        for line in self._child.stdout:
            self.lines.append(line.rstrip("\n"))

    @property
    def pid(self) -> int:
        assert self._child is not None
        return self._child.pid

    def ended(self) -> bool:
        return self._child is not None and self._child.poll() is not None

    def stop(self, *, grace_s: float = 20.0) -> None:
        """SIGTERM, then SIGKILL to the whole process group once the grace is over."""
        if self._child is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._child.pid, signal.SIGTERM)
        try:
            self._child.wait(grace_s)
        except subprocess.TimeoutExpired:
            say(f"{self.command[0]} did not end within {grace_s:.0f} s of SIGTERM")
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()

    def tail(self, count: int = 5) -> str:
        return " | ".join(self.lines[-count:]) or "no output"


def wait_for(process: Process, pattern: str, *, within_s: float = READY_WITHIN_S) -> re.Match[str]:
    """The first output line that matches. Raises NotStartedError when the process ends first."""
    expression, end, seen = re.compile(pattern), time.monotonic() + within_s, 0
    while time.monotonic() < end:
        gone = process.ended()
        fresh = process.lines[seen:]
        seen += len(fresh)
        for line in fresh:
            if found := expression.search(line):
                return found
        if gone and seen == len(process.lines):
            raise NotStartedError(f"{process.command[0]} ended: {process.tail()}")
        time.sleep(0.02)
    raise NotStartedError(f"{process.command[0]} not ready in {within_s:.0f} s: {process.tail()}")


@contextlib.contextmanager
def hedgerow(
    models: Mapping[str, Path],
    *,
    lengths: Mapping[str, int],
    flags: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
) -> Generator[Target, None, None]:
    """`hedgerow up` with token ids allowed, on free loopback ports; ended on the way out.

    models: alias -> folder; lengths: alias -> `--max-seq-len`
    Yields the Target of its gateway and its embedded NATS server.
    """
    with tempfile.TemporaryDirectory(prefix="hedgerow-bench-") as data:
        command = [sys.executable, "-m", "hedgerow_local", "up", "--host", "127.0.0.1"]
        command += ["--port", str(free_port()), "--nats-port", str(free_port())]
        command += ["--data-dir", data, "--token-ids", "native"]
        for alias, folder in models.items():
            command += ["--model", f"{alias}={folder}"]
            command += ["--max-seq-len", f"{alias}={lengths[alias]}"]
        process = Process([*command, *flags], env or {})
        started = time.monotonic()
        try:
            process.start()
            target = _target(wait_for(process, r"\bready\b.*http://.*nats://").string)
            say(
                f"hedgerow up: ready after {time.monotonic() - started:.1f} s ({', '.join(models)})"
            )
            yield target
        finally:
            process.stop()


def _target(ready: str) -> Target:
    """The Target named by the ready line, which holds an http:// and a nats:// address."""
    http = re.search(r"http://([\w.\-]+|\[[0-9a-f:]+\]):(\d+)", ready)
    nats = re.search(r"nats://[^\s,;)]+", ready)
    if http is None or nats is None:
        raise NotStartedError(f"the ready line names no HTTP and NATS address: {ready}")
    return Target(
        name="hedgerow",
        host=http[1],
        port=int(http[2]),
        nats_url=nats[0].rstrip("."),
        takes_ids=True,
    )
