"""The CPU as a device: for each model the generated native code where it runs, else torch.

Imports no torch itself: a machine without it serves what native code can.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

from hedgerow_engine.executor import Executor
from hedgerow_engine.offers import only_in_torch
from hedgerow_engine.settings import EngineSettings
from hedgerow_engine.weights import Weights
from hedgerow_shared.cores import usable_cores
from hedgerow_shared.errors import StartupError
from hedgerow_shared.modelcard import ModelCard

Log = Callable[[str], None]


class CpuDevice:
    """Satisfies `Device`."""

    synchronous = True

    def __init__(self, settings: EngineSettings, log: Log) -> None:
        if settings.dtype == "float16":
            raise StartupError(
                "--dtype float16: no CPU multiplies it fast; use bfloat16 or float32"
            )
        if settings.threads < 1:
            raise StartupError(f"--threads {settings.threads}: at least 1")
        threads = min(settings.threads, usable_cores())
        if threads < settings.threads:
            log(f"--threads {settings.threads}: {threads} it is, the cores this process may use")
        self._settings, self._log = replace(settings, threads=threads), log
        self.name = f"cpu ({threads} thread{'s' if threads > 1 else ''})"

    def scope(self) -> AbstractContextManager[None]:
        return nullcontext()

    def build(self, card: ModelCard, weights: Weights) -> Executor:
        """Native code first, unless `--cpu-executor packed`; the log says which, and why."""
        if self._settings.cpu_executor == "packed":
            return self._packed(card, weights, "asked for")
        made, reason = self._native(card, weights)
        if made is not None:
            return made
        if self._settings.cpu_executor == "native":
            raise StartupError(f"--cpu-executor native: {reason}; use --cpu-executor auto")
        return self._packed(card, weights, reason)

    def close(self) -> None:
        return

    def _native(self, card: ModelCard, weights: Weights) -> tuple[Executor | None, str]:
        reason = only_in_torch(card)
        if reason is not None:
            return None, reason
        try:
            from hedgerow_engine.native.executor import NativeExecutor
            from hedgerow_engine.native.families import UnsupportedError
        except ModuleNotFoundError as error:
            if str(error.name).startswith("hedgerow"):
                raise
            return None, f"{error.name} is not installed (pip install 'hedgerow[cpu]')"
        except (ImportError, OSError) as error:  # there, and broken: a library for another system
            return None, f"llvmlite does not load ({str(error).splitlines()[0]})"
        settings = self._settings
        try:
            executor = NativeExecutor.load(
                card, weights.again(), dtype=settings.dtype, threads=settings.threads, log=self._log
            )
        except UnsupportedError as error:
            return None, str(error)
        return executor, ""

    def _packed(self, card: ModelCard, weights: Weights, why: str) -> Executor:
        try:
            from hedgerow_engine.device.packed import build_packed
        except ImportError as error:
            raise StartupError(
                f"{card.folder}: native code does not serve it ({why}) and torch is not installed "
                f"({error}); pip install 'hedgerow[worker]', or make up TORCH=1"
            ) from None
        self._log(f"cpu executor packed for {card.model_type}: {why}")
        return build_packed(card, weights, self._settings, self._log)
