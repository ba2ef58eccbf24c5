"""Devices: opened by name; the only rooms (with layers, attention and models) that see torch."""

from __future__ import annotations

from collections.abc import Callable

from hedgerow_engine.executor import Device
from hedgerow_engine.settings import EngineSettings
from hedgerow_shared.errors import StartupError


def open_device(settings: EngineSettings, log: Callable[[str], None]) -> Device:
    """Open what `settings.device` asks for. Raises StartupError naming what was found."""
    if settings.device.split(":")[0] not in ("auto", "cpu", "cuda"):
        raise StartupError(f"--device {settings.device}: use auto, cpu, cuda or cuda:N")
    from hedgerow_engine.device.cpu import CpuDevice

    if settings.device.startswith("cuda"):
        raise StartupError(f"--device {settings.device}: no CUDA device here; use --device cpu")
    return CpuDevice(settings, log)
