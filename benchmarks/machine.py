"""What the numbers were measured on, and with: one line of machine, one map of versions."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import time
from functools import cache
from pathlib import Path

from hedgerow_shared.cores import usable_cores

ROOT = Path(__file__).resolve().parent.parent
RESULTS = Path(__file__).resolve().parent / "results"
SCRATCH = ROOT / ".hedgerow" / "bench"
"""Generated models and other files that can be made again; ignored by git."""

_SHOWN_FEATURES = ("amx_bf16", "avx512_bf16", "avx512f", "avx2", "asimd")


@cache
def cores() -> int:
    """Cores this process may use, as at the first question: a thread may be pinned later."""
    return usable_cores()


@cache
def cpu_flags() -> frozenset[str]:
    """Instruction set names as /proc/cpuinfo spells them; empty where there is none."""
    for line in _cpuinfo():
        if line.startswith(("flags", "Features")):
            return frozenset(line.partition(":")[2].split())
    return frozenset()


def has_bf16() -> bool:
    """True when the CPU multiplies bfloat16 in hardware."""
    return bool(cpu_flags() & {"avx512_bf16", "amx_bf16", "bf16"})


@cache
def machine_line() -> str:
    """`2 cores, AMD EPYC (avx512_bf16), 23 GiB, Linux 6.1`."""
    names = [line.partition(":")[2].strip() for line in _cpuinfo() if line.startswith("model name")]
    name = names[0] if names else platform.processor() or platform.machine()
    family = {k.strip(): v.strip() for k, _, v in (x.partition(":") for x in _cpuinfo()[:12])}
    stepping = (
        f" family {family['cpu family']} model {family['model']}" if "model" in family else ""
    )
    feature = next((f for f in _SHOWN_FEATURES if f in cpu_flags()), "")
    system = f"{platform.system()} {'.'.join(platform.release().split('.')[:2])}"
    return f"{cores()} cores, {name}{stepping} ({feature}), {_memory_gib()} GiB, {system}"


@cache
def versions(*packages: str) -> dict[str, str]:
    """Versions of Hedgerow (with its commit), Python and `packages`; the absent are left out."""
    found = {"hedgerow": _hedgerow(), "python": platform.python_version()}
    for name in packages:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


@cache
def busy_warning() -> str:
    """A note for the rows when other work used the machine just now, else an empty string.

    Looks for half a second while this process sleeps; the first answer holds for the run.
    """
    share = _busy_share(0.5)
    return f"machine busy: other work took {share:.0%} of it" if share > 0.05 else ""


def _busy_share(seconds: float) -> float:
    before = _cpu_ticks()
    time.sleep(seconds)
    after = _cpu_ticks()
    total = sum(after) - sum(before)
    return 1 - (after[3] + after[4] - before[3] - before[4]) / total if total else 0.0


def _cpu_ticks() -> list[int]:
    """user, nice, system, idle, iowait, ... since boot; all zero where there is no /proc."""
    try:
        line = Path("/proc/stat").read_text("utf-8").splitlines()[0]
    except OSError:
        return [0] * 10
    return [int(ticks) for ticks in line.split()[1:]]


def _hedgerow() -> str:
    try:
        version = importlib.metadata.version("hedgerow")
    except importlib.metadata.PackageNotFoundError:
        version = "source"
    try:
        commit = subprocess.run(
            ["git", "rev-parse", "--short=10", "HEAD"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return version
    return f"{version}+{commit}"


@cache
def _cpuinfo() -> tuple[str, ...]:
    try:
        return tuple(Path("/proc/cpuinfo").read_text("utf-8").splitlines())
    except OSError:
        return ()


def _memory_gib() -> int:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30)
    except (ValueError, OSError):
        return 0
