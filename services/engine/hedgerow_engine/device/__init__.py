"""Devices, opened by name. torch is imported only by those that need it, and only then."""

from __future__ import annotations

from collections.abc import Callable

from hedgerow_engine.device.cpu import CpuDevice
from hedgerow_engine.executor import Device
from hedgerow_engine.settings import EngineSettings
from hedgerow_shared.errors import StartupError


def open_device(settings: EngineSettings, log: Callable[[str], None]) -> Device:
    """Open what `settings.device` asks for. Raises StartupError naming what was found."""
    kind = settings.device.partition(":")[0]
    if kind not in ("auto", "cpu", "cuda"):
        raise StartupError(f"--device {settings.device}: use auto, cpu, cuda or cuda:N")
    if kind == "cuda":
        raise StartupError(f"--device {settings.device}: no CUDA device here; use --device cpu")
    return CpuDevice(settings, log)
