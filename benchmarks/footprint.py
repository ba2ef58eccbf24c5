"""What each way of installing costs: download, disk, time to install, time to the first vector,
memory. Two environments are made from nothing in a scratch folder, with torch and without.

Packages come from wherever this machine's pip takes them, so the seconds of installing are of its
network or mirror; sizes are the same everywhere.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import say
from benchmarks.machine import ROOT
from benchmarks.rows import Row
from benchmarks.server import Process, free_port, wait_for

SUITE = "footprint"
STARTS = 5
_BUILD = "torch's CPU build where pip takes that; PyPI's for Linux is CUDA's, of several GB"
_UNITS = {"kB": 1e-3, "MB": 1.0, "GB": 1e3}
_FETCHED = re.compile(r"^\s*(?:Downloading|Using cached) \S+ \(([\d.]+) ([kMG]B)\)", re.MULTILINE)
_LOCAL = re.compile(r"^\s*Processing (/\S+\.whl)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Start:
    """One `hedgerow up`: seconds to `ready` and to the first vector, MB resident afterwards."""

    ready_s: float
    vector_s: float
    worker_mb: float
    gateway_mb: float


def run(*, quick: bool) -> list[Row]:
    """One line per way and figure. Starts are repeated: the best is a warm disk's."""
    rows: list[Row] = []
    for name, flags in (("without torch", []), ("with torch", ["--torch"])):
        with tempfile.TemporaryDirectory(prefix="hedgerow-footprint-") as scratch:
            rows += _measure(name, flags, Path(scratch), 2 if quick else STARTS)
    return rows


def _measure(name: str, flags: list[str], scratch: Path, starts: int) -> list[Row]:
    venv = scratch / "venv"
    say(f"footprint: installing {name}")
    began_s = time.monotonic()
    command = [sys.executable, str(ROOT / "infra" / "bootstrap.py"), "run", "--venv", str(venv)]
    done = subprocess.run([*command, *flags], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"installing {name} failed: {done.stderr.strip().splitlines()[-1]}")
    took_s = time.monotonic() - began_s
    # With torch the packed executor is what such an environment adds; natively both are equal.
    extra = ["--cpu-executor", "packed"] if flags else []
    found = [_start(venv, scratch / f"data{i}", extra) for i in range(starts)]

    def row(case: str, unit: str, value: float, samples: int = 1, note: str = "") -> Row:
        return Row(
            suite=SUITE, case=case, engine=name, unit=unit, samples=samples, rate=value, note=note
        )

    log = (venv / "hedgerow-setup.log").read_text("utf-8")
    executor = "packed executor" if flags else "native executor"
    return [
        row("download", "MB", download_mb(log), note=_BUILD if flags else ""),
        row("installed", "MB", _size_mb(venv)),
        row("install", "s", took_s, note="from this machine's package index"),
        row("up to ready", "s", min(s.ready_s for s in found), starts, executor),
        row("up to first vector", "s", min(s.vector_s for s in found), starts, executor),
        row("worker resident", "MB", max(s.worker_mb for s in found), starts, executor),
        row("gateway resident", "MB", max(s.gateway_mb for s in found), starts),
    ]


def download_mb(log: str) -> float:
    """Size of all wheels pip took, by its own log."""
    fetched = sum(float(size) * _UNITS[unit] for size, unit in _FETCHED.findall(log))
    local = [Path(file) for file in _LOCAL.findall(log)]
    return fetched + sum(f.stat().st_size / 1e6 for f in local if f.is_file())


def _size_mb(folder: Path) -> float:
    return sum(f.lstat().st_size for f in folder.rglob("*") if not f.is_dir()) / 1e6


def _start(venv: Path, data: Path, extra: list[str]) -> Start:
    port = free_port()
    command = [str(venv / "bin" / "hedgerow"), "up", "--workers", "1", "--port", str(port)]
    command += ["--nats-port", str(free_port()), "--data-dir", str(data), *extra]
    process, began_s = Process(command), time.monotonic()
    try:
        process.start()
        wait_for(process, r"\bready\b.*http://.*nats://")
        ready_s = time.monotonic() - began_s
        _ask(port)
        vector_s = time.monotonic() - began_s
        resident = _resident(process.pid)
        return Start(
            ready_s, vector_s, resident["hedgerow_scheduler"], resident["hedgerow_gateway"]
        )
    finally:
        process.stop()


def _ask(port: int) -> None:
    url = f"http://127.0.0.1:{port}/v1/embeddings"
    request = urllib.request.Request(
        url, b'{"input": "a hedge of hawthorn"}', {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert len(json.load(answer)["data"][0]["embedding"]) == 384


def _resident(parent: int) -> Mapping[str, float]:
    """MB resident of the children of a process, by the module they run."""
    found: dict[str, float] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            status = (entry / "status").read_text("utf-8")
            command = (entry / "cmdline").read_text("utf-8").split("\0")
        except OSError:
            continue
        if f"PPid:\t{parent}\n" not in status:
            continue
        kb = re.search(r"^VmRSS:\s+(\d+) kB", status, re.MULTILINE)
        for module in ("hedgerow_scheduler", "hedgerow_gateway"):
            if module in command and kb:
                found[module] = int(kb[1]) * 1024 / 1e6
    return found
