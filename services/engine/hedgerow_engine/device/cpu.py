"""The CPU as a device: thread count, number type, and which executor runs a model."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager

import torch

from hedgerow_engine.device.packed import build_packed
from hedgerow_engine.device.packed_ops import PackedOps, packed_works
from hedgerow_engine.executor import Executor
from hedgerow_engine.settings import EngineSettings
from hedgerow_engine.weights import Weights
from hedgerow_shared.errors import StartupError
from hedgerow_shared.modelcard import ModelCard


class CpuDevice:
    """Satisfies `Device` with torch on the CPU."""

    synchronous = True

    def __init__(self, settings: EngineSettings, log: Callable[[str], None]) -> None:
        self._settings = settings
        self._dtype = _dtype(settings)
        self.name = f"cpu ({settings.threads} thread{'s' if settings.threads > 1 else ''})"
        with torch.inference_mode():
            packed = packed_works(self._dtype)
        self._ops = PackedOps(self._dtype, packed=packed)
        how = "oneDNN packed operators" if packed else "F.linear: the packed operators do not work"
        log(f"cpu executor packed: torch {torch.__version__}, {how}, {self._dtype}")

    @contextmanager
    def scope(self) -> Generator[None]:
        # The count is a property of the calling thread under OpenMP.
        torch.set_num_threads(self._settings.threads)
        with torch.inference_mode():
            yield

    def build(self, card: ModelCard, weights: Weights) -> Executor:
        return build_packed(card, weights, self._settings, self._ops)

    def close(self) -> None:
        return


def _dtype(settings: EngineSettings) -> torch.dtype:
    """bfloat16 where the CPU multiplies it natively, float32 elsewhere, or what was asked for."""
    if settings.dtype == "float16":
        raise StartupError("--dtype float16: CPUs have no fast float16; use bfloat16 or float32")
    capabilities = torch.cpu.get_capabilities()
    fast = any(capabilities.get(k) for k in ("avx512_bf16", "amx_bf16", "bf16"))
    if settings.dtype == "auto":
        return torch.bfloat16 if fast else torch.float32
    return torch.bfloat16 if settings.dtype == "bfloat16" else torch.float32
