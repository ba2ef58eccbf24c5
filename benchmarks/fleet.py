"""A fleet started part by part (nats-server, workers, one gateway), so that each can be watched."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.clients.http import HttpClient, get
from benchmarks.server import NotStartedError, Process, free_port, wait_for
from benchmarks.target import Target
from hedgerow_shared import natsserver


@dataclass(slots=True)
class Fleet:
    """The running parts: role -> process ids, and where to send requests."""

    target: Target
    pids: Mapping[str, Sequence[int]]
    gateway: Process

    def cpu_s(self) -> dict[str, float]:
        """CPU seconds each role has used since its processes began."""
        return {role: sum(cpu_seconds(pid) for pid in pids) for role, pids in self.pids.items()}


@dataclass(slots=True)
class _Parts:
    processes: list[Process] = field(default_factory=list)

    def start(self, command: Sequence[str], ready: str, env: Mapping[str, str]) -> Process:
        process = Process(command, env)
        self.processes.append(process)
        process.start()
        wait_for(process, ready, within_s=60)
        return process


def cpu_seconds(pid: int) -> float:
    """User and system CPU time of a process; 0 when it is gone."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(after_name[11]) + int(after_name[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def fake_fleet(
    folder: Path,
    workers: int,
    *,
    ms_per_4096: float = 16.0,
    floor_ms: float = 2.0,
    gateways: int = 1,
    worker_flags: Sequence[str] = (),
    profile: Path | None = None,
) -> Generator[Fleet, None, None]:
    """`workers` fake devices that serve the model of `folder` as `minilm`, behind one gateway, or
    several on one port.

    profile: file the gateway's cProfile statistics are written to when it ends
    Raises NotStartedError when a part does not come up.
    """
    model = ["--model", f"minilm={folder}", "--max-seq-len", "minilm=512"]
    fake = ["--device", "fake", "--fake-ms", str(ms_per_4096), "--fake-floor-ms", str(floor_ms)]
    parts, port = _Parts(), free_port()
    with tempfile.TemporaryDirectory(prefix="hedgerow-bench-") as scratch:
        nats = natsserver.start(Path(scratch))
        try:
            bus = ["--nats-url", nats.url]
            run_worker = [sys.executable, "-m", "hedgerow_scheduler", *bus, *model, *fake]
            run_worker += worker_flags
            started = [parts.start(run_worker, r"\bready on\b", {}) for _ in range(workers)]
            run_gateway = [sys.executable]
            if profile is not None:
                run_gateway += ["-m", "cProfile", "-o", str(profile)]
            run_gateway += ["-m", "hedgerow_gateway", *bus, *model]
            run_gateway += ["--port", str(port), "--token-ids", "native"]
            shared = ["--reuse-port"] if gateways > 1 else []
            made = [
                parts.start([*run_gateway, *shared], rf":{port}\b", {}) for _ in range(gateways)
            ]
            gateway = made[0]
            pids = {
                "gateway": [process.pid for process in made],
                "nats": [nats.process.pid],
                "workers": [process.pid for process in started],
                "client": [os.getpid()],
            }
            target = Target(name="hedgerow", port=port, nats_url=nats.url)
            for process in made:
                _await_workers(target, process, workers)
            yield Fleet(target, pids, gateway)
        finally:
            for process in reversed(parts.processes):
                process.stop()
            nats.stop()


def _await_workers(target: Target, gateway: Process, workers: int) -> None:
    """Return once the gateway is ready and has heard of every worker."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        known = {line.split("worker ")[1].split()[0] for line in gateway.lines if "joined" in line}
        if len(known) >= workers and _is_ready(target):
            return
        time.sleep(0.1)
    raise NotStartedError(f"the gateway knows too few of {workers} workers: {gateway.tail()}")


def _is_ready(target: Target) -> bool:
    with contextlib.suppress(OSError), HttpClient(target.host, target.port) as client:
        return client.exchange(get(target.host, "/health/ready")).status == 200
    return False
