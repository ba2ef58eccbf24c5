"""Devices, opened by name. torch is imported only by those that need it, and only then."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hedgerow_engine.device.cpu import CpuDevice
from hedgerow_engine.executor import Device
from hedgerow_engine.settings import EngineSettings
from hedgerow_shared.errors import StartupError

CARD = Path("/dev/nvidiactl")


def open_device(settings: EngineSettings, log: Callable[[str], None]) -> Device:
    """Open what `settings.device` asks for. Raises StartupError naming what was found."""
    kind = settings.device.partition(":")[0]
    if kind not in ("auto", "cpu", "cuda"):
        raise StartupError(f"--device {settings.device}: use auto, cpu, cuda or cuda:N")
    if kind == "cuda" or (kind == "auto" and CARD.exists()):
        device = _cuda(settings, log)
        if device is not None:
            return device
    return CpuDevice(settings, log)


def _cuda(settings: EngineSettings, log: Callable[[str], None]) -> Device | None:
    """The card; None where `auto` found one that cannot be used, with a line that says why."""
    try:
        try:
            from hedgerow_engine.device.cuda.device import open_cuda
        except ImportError as error:
            raise StartupError(
                f"--device {settings.device}: torch is not installed ({error}); "
                "pip install 'hedgerow[worker]'"
            ) from None
        return open_cuda(settings, log)
    except StartupError as error:
        if settings.device != "auto":
            raise
        log(f"a card is there but not used: {error}")
        return None
