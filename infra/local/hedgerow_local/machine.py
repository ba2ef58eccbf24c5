"""What this machine has, read without importing anything heavy."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hedgerow_shared.cores import usable_cores

CPU_FEATURES = ("avx512_bf16", "avx512f", "avx2")
"""Instruction sets with native kernels, widest first."""

_OTHER_GPUS = (Path("/dev/dxg"), Path("/dev/kfd"))
"""NVIDIA's under WSL, and AMD's: torch names both cuda."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """cores: usable by this process; cpu_feature: the widest of CPU_FEATURES, or "".

    gpus: NVIDIA devices that this process may use; torch: its version, or "".
    other_gpu: there is a device that a torch may call cuda, and that is not counted in gpus
    """

    cores: int
    cpu_feature: str
    gpus: int
    torch: str
    llvmlite: str
    other_gpu: bool = False

    @property
    def cuda(self) -> bool:
        """True when a worker with `--device auto` will find a GPU and a torch that can use it."""
        return self.gpus > 0 and bool(self.torch) and "+cpu" not in self.torch


def look() -> Machine:
    return Machine(
        cores=usable_cores(),
        cpu_feature=cpu_feature(),
        gpus=visible_gpus(os.environ),
        torch=version_of("torch"),
        llvmlite=version_of("llvmlite"),
        other_gpu=any(device.exists() for device in _OTHER_GPUS),
    )


def version_of(package: str) -> str:
    """The installed version of `package`, or "". It is not imported."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def visible_gpus(env: Mapping[str, str], dev: Path = Path("/dev")) -> int:
    devices = len([d for d in dev.glob("nvidia*") if d.name.removeprefix("nvidia").isdecimal()])
    chosen = env.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return devices
    return min(devices, len([part for part in chosen.split(",") if part.strip() not in ("", "-1")]))


def cpu_feature(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return ""
    try:
        found = re.search(r"^flags\s*:(.*)$", cpuinfo.read_text("utf-8"), re.MULTILINE)
    except OSError:
        return ""
    flags = set(found.group(1).split()) if found else set[str]()
    return next((name for name in CPU_FEATURES if name in flags), "")
