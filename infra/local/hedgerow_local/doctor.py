"""`hedgerow doctor`: looks at this machine and says what is missing and what to do about it."""

from __future__ import annotations

import platform
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hedgerow_local import ports
from hedgerow_local.machine import Machine, version_of
from hedgerow_local.options import DEFAULT_NATS_PORT, UpOptions, find_models
from hedgerow_local.state import running_in
from hedgerow_local.target import bus_options
from hedgerow_shared import natsserver
from hedgerow_shared.bus import Bus
from hedgerow_shared.errors import StartupError

_FREE_BYTES = 2 * 1024**3


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at. `remedy` is empty when it is fine; `fatal`: nothing can be served."""

    what: str
    found: str
    remedy: str = ""
    fatal: bool = False


async def examine(options: UpOptions, machine: Machine) -> list[Finding]:
    """Everything `up` with these options would need, in the order it would need it."""
    findings = [_python(), *_cpu(machine), _gpu(machine), _nats_server()]
    running = running_in(options.data_dir)
    if running:
        findings.append(Finding("running", f"pid {running.pid}: {running.http_url}"))
    else:
        findings += _ports(options)
    findings += _models(options)
    findings.append(_disk(options.data_dir))
    if options.nats_url or running:
        findings.append(await _bus(options))
    return findings


def _python() -> Finding:
    return Finding("python", platform.python_version())


def _cpu(machine: Machine) -> Iterator[Finding]:
    feature = machine.cpu_feature or "no AVX2"
    yield Finding("cpu", f"{machine.cores} usable core(s), {feature}")
    if not machine.torch and not (machine.llvmlite and machine.cpu_feature):
        yield Finding(
            "engine",
            "neither torch nor a CPU with native kernels",
            "pip install 'hedgerow[local]'",
            fatal=True,
        )
        return
    yield Finding(
        "engine", f"torch {machine.torch or 'absent'}, llvmlite {machine.llvmlite or 'absent'}"
    )


def _gpu(machine: Machine) -> Finding:
    if not machine.gpus:
        return Finding("gpu", "none; workers run on the CPU")
    if not machine.cuda:
        return Finding(
            "gpu",
            f"{machine.gpus} NVIDIA device(s), but torch {machine.torch or 'is absent'}",
            "install a CUDA build of torch (README, TORCH_INDEX) to use them",
        )
    kernels = version_of("flashinfer-python")
    remedy = "" if kernels else "pip install 'hedgerow[cuda]' for the faster attention kernels"
    return Finding("gpu", f"{machine.gpus} NVIDIA device(s), torch {machine.torch}", remedy)


def _nats_server() -> Finding:
    try:
        binary = natsserver.find_binary()
    except StartupError as error:
        return Finding("nats-server", "absent", str(error), fatal=True)
    done = subprocess.run([str(binary), "--version"], capture_output=True, text=True, check=False)
    return Finding("nats-server", done.stdout.strip().rpartition(": ")[2] or str(binary))


def _ports(options: UpOptions) -> Iterator[Finding]:
    for flag, host, port in (
        ("--port", options.host, options.port),
        ("--nats-port", "127.0.0.1", options.nats_port or DEFAULT_NATS_PORT),
    ):
        name = f"port {port}"
        if ports.is_free(host, port):
            yield Finding(name, "free")
            continue
        who = ports.holder(port) or "another process"
        chosen = flag == "--nats-port" and not options.nats_port
        remedy = "`up` will take a random one" if chosen else f"choose another with {flag}"
        yield Finding(name, f"taken by {who}", remedy, fatal=not chosen)


def _models(options: UpOptions) -> Iterator[Finding]:
    try:
        for model in find_models(options):
            yield Finding(f"model {model.alias}", str(model.card.folder))
    except StartupError as error:
        yield Finding("model", "not usable", str(error), fatal=True)


def _disk(data_dir: Path) -> Finding:
    where = data_dir if data_dir.exists() else data_dir.absolute().parent
    free = shutil.disk_usage(where).free
    remedy = "bulk jobs are stored there: free some, or use --data-dir" * (free < _FREE_BYTES)
    return Finding("disk", f"{free / 1024**3:.1f} GiB free for {data_dir}", remedy)


async def _bus(options: UpOptions) -> Finding:
    target = bus_options(options.nats_url, "hedgerow-doctor", data_dir=options.data_dir)
    try:
        bus = await Bus.connect(target)
    except StartupError as error:
        return Finding("bus", "no answer", str(error), fatal=True)
    limit = bus.max_payload
    await bus.close()
    return Finding("bus", f"{target.url}, messages up to {limit // 1024} KiB")
