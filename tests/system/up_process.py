"""`hedgerow up` as a subprocess, seen from outside."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import signal
import subprocess
import sys
import sysconfig
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hedgerow_shared.natsserver import free_port

READY_S = 120.0


class Up:
    """A running `hedgerow up`. `stdout` and `stderr` hold the lines so far."""

    def __init__(self, folder: Path, *flags: str, env: dict[str, str] | None = None) -> None:
        self.folder = folder
        self.stdout: list[str] = []
        self.stderr: list[str] = []
        self._first = queue.Queue[str]()
        command = [sys.executable, "-m", "hedgerow_local", "up", "--port", "0"]
        command += ["--nats-port", str(free_port()), "--data-dir", str(folder / "data"), *flags]
        clean = {k: v for k, v in os.environ.items() if not k.startswith("HEDGEROW_")}
        scripts = sysconfig.get_path("scripts")
        self.env = {**clean, "PATH": f"{scripts}{os.pathsep}{clean['PATH']}", **(env or {})}
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            env=self.env,
            cwd=folder,
        )
        self._readers = [
            threading.Thread(target=self._read, args=(self.process.stdout, self.stdout)),
            threading.Thread(target=self._read, args=(self.process.stderr, self.stderr)),
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, stream: Any, lines: list[str]) -> None:
        for line in stream:
            lines.append(line.rstrip("\n"))
            if lines is self.stdout and len(lines) == 1:
                self._first.put(lines[0])

    def wait_ready(self) -> Up:
        end = time.monotonic() + READY_S
        while time.monotonic() < end:
            with contextlib.suppress(queue.Empty):
                first = self._first.get(timeout=0.1)
                self.http_url, self.nats_url = re.findall(r"(?:http|nats)://[\w.:]+\d", first)
                return self
            assert self.process.poll() is None, f"up ended: {self.log()}"
        raise AssertionError(f"not ready in {READY_S} s: {self.log()}")

    def log(self) -> str:
        return "\n".join(self.stdout + self.stderr)

    def banner(self, label: str) -> str:
        """The line of what was printed that starts with `label`, without it."""
        return next(
            line.strip().removeprefix(label).strip()
            for line in self.stdout
            if line.strip().startswith(label)
        )

    def children(self) -> dict[int, str]:
        """Command lines of the processes it started, by pid."""
        found: dict[int, str] = {}
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                state, ppid = stat.read_text().rsplit(")", 1)[1].split()[:2]
                if int(ppid) == self.process.pid and state != "Z":
                    line = (stat.parent / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                    found[int(stat.parent.name)] = line
        return found

    def pids(self, part: str) -> list[int]:
        return [pid for pid, line in self.children().items() if part in line]

    def post(self, path: str, body: Any, timeout_s: float = 60.0) -> tuple[int, Any]:
        """(status, decoded body); 0 where the connection failed."""
        request = urllib.request.Request(
            self.http_url + path,
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=timeout_s) as reply:
                return reply.status, json.load(reply)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)
        except (OSError, ValueError):
            return 0, None

    def embed(self, text: Any = "hello") -> int:
        return self.post("/v1/embeddings", {"input": text})[0]

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def wait_ended(self, timeout_s: float = 60.0) -> int:
        status = self.process.wait(timeout_s)
        for reader in self._readers:
            reader.join(10)
        return status

    def stop(self) -> int:
        if self.process.poll() is None:
            self.interrupt()
        try:
            return self.wait_ended()
        except subprocess.TimeoutExpired:
            self.process.kill()  # its children end with it
            return self.wait_ended()


def until(condition: Callable[[], Any], what: str, deadline_s: float = 30.0) -> Any:
    """Wait until `condition` gives something true, and return it."""
    end = time.monotonic() + deadline_s
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < end, f"not in {deadline_s} s: {what}"
        time.sleep(0.05)


def exists(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def get_status(url: str) -> int:
    """Status of a GET; 0 where nobody answers."""
    try:
        with urllib.request.urlopen(url, timeout=5) as reply:
            return reply.status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0
