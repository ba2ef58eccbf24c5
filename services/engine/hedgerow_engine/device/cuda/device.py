"""Opening a card and loading a model onto it; what cannot be is said in one line."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from hedgerow_engine.attention.choose import BACKENDS, BackendName
from hedgerow_engine.device.cuda.attention import Kernels
from hedgerow_engine.device.cuda.executor import CudaExecutor
from hedgerow_engine.device.cuda.ops import CudaOps
from hedgerow_engine.device.cuda.probe import Parts
from hedgerow_engine.device.cuda.runtime import OUT_OF_MEMORY, Runtime
from hedgerow_engine.layers.kernels.base import FusedKernels
from hedgerow_engine.layers.kernels.twins import TorchKernels
from hedgerow_engine.layers.ops import Norm
from hedgerow_engine.models.registry import load_model
from hedgerow_engine.settings import EngineSettings
from hedgerow_engine.weightfile import RawTensor
from hedgerow_engine.weights import Weights
from hedgerow_shared.errors import StartupError
from hedgerow_shared.modelcard import ModelCard

Log = Callable[[str], None]
OLDEST_ARCH = 80
OLDEST_FP8_ARCH = 90
OLDEST_FLASHINFER = "0.7.2.post1"
_WORKING_BYTES = 512 << 20


class CudaDevice:
    """Satisfies `Device`: one card, whichever runtime drives it."""

    synchronous = False

    def __init__(
        self,
        runtime: Runtime,
        settings: EngineSettings,
        log: Log,
        *,
        installed: frozenset[BackendName],
        fused: FusedKernels,
    ) -> None:
        if settings.attention not in ("auto", *BACKENDS):
            raise StartupError(
                f"attention {settings.attention!r}: use auto or one of {', '.join(BACKENDS)}"
            )
        if settings.fp8:
            check_fp8(runtime, choose_dtype(settings))
        self._runtime, self._settings, self._log = runtime, settings, log
        self._installed, self._fused = installed, fused
        self.name = runtime.name

    def scope(self) -> AbstractContextManager[None]:
        return self._runtime.scope()

    def build(self, card: ModelCard, weights: Weights) -> CudaExecutor:
        """Load one model. Raises StartupError when the card has not the memory."""
        try:
            return self._build(card, weights)
        except OUT_OF_MEMORY as error:
            self._runtime.trim()
            raise StartupError(
                f"{card.folder}: {self.name} ran out of memory while the model was loaded; "
                f"{self._runtime.free_bytes() >> 20} MiB are free now; free some, take a smaller "
                "model, or use --device cpu"
            ) from error

    def _build(self, card: ModelCard, weights: Weights) -> CudaExecutor:
        dtype = choose_dtype(self._settings)
        self._check_memory(card, weights, dtype)
        ops = CudaOps(self._runtime.device, dtype, self._fused, fp8=self._settings.fp8)
        # Tables that models make themselves (rotary angles) belong on the card too.
        with torch.device(self._runtime.device):
            model = load_model(card, weights, ops)
        self._runtime.settle()
        # What loading needed for a moment is of no use to passes, but would look taken.
        self._runtime.trim()
        kernels = Kernels(
            self._runtime,
            dtype=dtype,
            installed=self._installed,
            wanted=self._settings.attention,
            log=self._log,
        )
        if ops.fp8_layers:
            self._log(f"float8: {ops.fp8_layers} matrices of {card.model_type}")
        parts = Parts(card, model, self._runtime, kernels, self._fused, self._settings)
        kind = str(dtype).removeprefix("torch.") + ("-fp8" if ops.fp8_layers else "")
        return CudaExecutor(parts, self._log, numerics=f"cuda-{kind}")

    def close(self) -> None:
        self._runtime.settle()

    def _check_memory(self, card: ModelCard, weights: Weights, dtype: torch.dtype) -> None:
        needed = sum(bytes_on_card(raw, dtype) for raw in weights.tensors) + _WORKING_BYTES
        self._runtime.trim()
        free = self._runtime.free_bytes()
        if needed > free:
            raise StartupError(
                f"{card.folder}: needs about {needed >> 20} MiB of GPU memory ({dtype} weights "
                f"and working space), but {self.name} has {free >> 20} MiB free; free some, take "
                "a smaller model, or use --device cpu"
            )


def bytes_on_card(raw: RawTensor, dtype: torch.dtype) -> int:
    """What a tensor of a file takes once loaded. Embedding tables keep the file's numbers (float64
    becomes float32), vectors become float32, matrices what they are multiplied in."""
    if "embed" in raw.name:
        return raw.data.size * min(raw.data.itemsize, 4)
    return raw.data.size * (4 if raw.data.ndim < 2 else dtype.itemsize)


def choose_dtype(settings: EngineSettings) -> torch.dtype:
    """bfloat16 unless something else was asked for: every card from Ampere on multiplies it."""
    if settings.dtype == "auto":
        return torch.bfloat16
    kinds = {
        "float32": torch.float32,
        "bfloat16": torch.bfloat16,
        "float16": torch.float16,
    }
    return kinds[settings.dtype]


def open_cuda(settings: EngineSettings, log: Log) -> CudaDevice:
    """Open the card `settings.device` names. Raises StartupError: no card, or too old a one."""
    where = f"--device {settings.device}"
    index = _index(settings.device)
    if not torch.cuda.is_available():
        built = "this torch has no CUDA" if torch.version.cuda is None else "no usable NVIDIA card"
        raise StartupError(
            f"{where}: {built} (torch {torch.__version__}); use --device cpu, or install a CUDA "
            "build of torch and a driver it accepts"
        )
    count = torch.cuda.device_count()
    if index >= count:
        raise StartupError(f"{where}: there are {count} cards, numbered from 0")
    from hedgerow_engine.device.cuda.driver import CudaRuntime

    runtime = CudaRuntime(index)
    check_arch(runtime, where)
    with runtime.scope():
        fused = fused_kernels(runtime.device, log)
    device = CudaDevice(runtime, settings, log, installed=installed_backends(log), fused=fused)
    log(f"torch {torch.__version__}, CUDA {torch.version.cuda}, {runtime.name}, sm_{runtime.arch}")
    return device


def check_arch(runtime: Runtime, where: str) -> None:
    """Raise StartupError for a card that does not multiply bfloat16."""
    if runtime.arch < OLDEST_ARCH:
        raise StartupError(
            f"{where}: {runtime.name} has compute capability {runtime.arch // 10}."
            f"{runtime.arch % 10}, this engine needs {OLDEST_ARCH // 10}.{OLDEST_ARCH % 10} "
            "(Ampere) or newer; use --device cpu"
        )


def check_fp8(runtime: Runtime, dtype: torch.dtype) -> None:
    """Raise StartupError where float8 products with a scale for each row do not exist."""
    if runtime.arch < OLDEST_FP8_ARCH:
        raise StartupError(
            f"fp8: {runtime.name} has compute capability {runtime.arch // 10}.{runtime.arch % 10}, "
            f"float8 products with a scale for each row need {OLDEST_FP8_ARCH // 10}."
            f"{OLDEST_FP8_ARCH % 10} (Hopper) or newer; use --fp8 off"
        )
    if dtype != torch.bfloat16:
        raise StartupError(
            f"fp8: float8 products are answered in bfloat16, but {dtype} was asked for; "
            "use --dtype bfloat16 or auto, or --fp8 off"
        )


def installed_backends(log: Log) -> frozenset[BackendName]:
    """Attention backends whose packages are here. One line for each that is not."""
    found: set[BackendName] = {"sdpa"}
    if importlib.util.find_spec("torch.nn.attention.varlen") is not None:
        found.add("varlen")
    missing = flashinfer_missing()
    if missing is None:
        found |= {"flashinfer_fa3", "flashinfer_fa2"}
    else:
        log(f"FlashInfer {missing}: torch's kernels are used; pip install -U 'hedgerow[cuda]'")
    if _has_fa4():
        found.add("fa4")
    return frozenset(found)


def flashinfer_missing() -> str | None:
    """Why FlashInfer is not used, or None. Before `OLDEST_FLASHINFER` a graph without split-KV
    reads stale plan rows."""
    if importlib.util.find_spec("flashinfer") is None:
        return "is not installed"
    try:
        version = importlib.metadata.version("flashinfer-python")
    except importlib.metadata.PackageNotFoundError:
        return f"does not say its version ({OLDEST_FLASHINFER} or newer is needed)"
    if _release(version) < _release(OLDEST_FLASHINFER):
        return f"{version} is too old (its graphs are right from {OLDEST_FLASHINFER} on)"
    return None


def _release(version: str) -> tuple[tuple[int, ...], int]:
    """((0, 7, 2), 1) of "0.7.2.post1"; what comes before a release counts as that release, and a
    text without a number as older than all."""
    parts = re.match(r"(\d+(?:\.\d+)*)(?:\.post(\d+))?", version)
    if parts is None:
        return (), 0
    return tuple(map(int, parts[1].split("."))), int(parts[2] or 0)


def _has_fa4() -> bool:
    try:
        return importlib.util.find_spec("flash_attn.cute") is not None
    except ModuleNotFoundError:
        return False


def fused_kernels(device: torch.device, log: Log) -> FusedKernels:
    """FlashInfer over Triton over plain torch: the best that imports, compiles and agrees."""
    candidates: list[Callable[[], FusedKernels]] = [_triton, TorchKernels]
    if flashinfer_missing() is None:
        candidates.insert(0, _flashinfer)
    for make in candidates:
        try:
            kernels = make()
            check_kernels(kernels, device)
        except Exception as error:  # noqa: BLE001 - whatever a foreign compiler raises
            text = str(error).strip().split("\n", 1)[0][:160]
            log(
                f"fused kernels of {make.__name__.strip('_')} do not work here "
                f"({type(error).__name__}: {text}); the next best instead"
            )
            continue
        log(f"fused kernels: {kernels.name}")
        return kernels
    raise StartupError("not even plain torch computes on this card; is the driver right?")


def check_kernels(kernels: FusedKernels, device: torch.device) -> None:
    """Compare one norm, one gate and both poolings with plain torch. Raises what it raises."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(5, 256, generator=generator).to(device, torch.bfloat16)
    norm = Norm(torch.ones(256, device=device), None, 1e-6, "rms")
    starts = torch.tensor([0, 5], dtype=torch.int32, device=device)
    ends = torch.tensor([5, 5], dtype=torch.int32, device=device)

    def all_of(one: FusedKernels) -> list[Tensor]:
        return [
            one.norm(x, norm),
            *one.add_norm(x.clone(), None, x.clone(), norm),
            one.gated(x, "silu"),
            one.pool(x, starts, ends, "mean").unit,
            one.reduce(x, starts, ends, "max"),
        ]

    for got, right in zip(all_of(kernels), all_of(TorchKernels()), strict=True):
        if not torch.allclose(got.float(), right.float(), atol=0.05, rtol=0.02):
            raise ArithmeticError("its numbers differ from plain torch's")


def _triton() -> FusedKernels:
    from hedgerow_engine.layers.kernels.fused import TritonKernels

    return TritonKernels()


def _flashinfer() -> FusedKernels:
    from hedgerow_engine.layers.kernels.flashinfer import FlashInferKernels

    return FlashInferKernels()


def _index(device: str) -> int:
    number = device.partition(":")[2]
    if number and not number.isdigit():
        raise StartupError(f"--device {device}: use cuda or cuda:N")
    return int(number or 0)
