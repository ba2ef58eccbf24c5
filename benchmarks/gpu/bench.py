"""What every section of the check works with: a card (or its rehearsal), sizes, a clock, rows."""

from __future__ import annotations

import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.shapes import Shape, write_model
from benchmarks.machine import machine_line, versions
from benchmarks.rows import Row, percentiles
from hedgerow_engine.attention.choose import BackendName
from hedgerow_engine.device.cuda.device import CudaDevice
from hedgerow_engine.device.cuda.runtime import Runtime
from hedgerow_engine.engine import Engine
from hedgerow_engine.layers.kernels.base import FusedKernels
from hedgerow_engine.load import EngineHost, EngineSettings, ModelSpec
from hedgerow_shared.ragged import Lane, RaggedBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much of everything. The rehearsal walks the same code with a tenth of nothing."""

    pass_tokens: tuple[int, ...] = (128, 512, 2048, 8192)
    latency_tokens: tuple[int, ...] = (128, 512, 4096)
    scoring: tuple[int, ...] = (5, 25, 50)
    scoring_tokens: int = 512
    bulk_tokens: tuple[int, ...] = (512, 1024, 4096)
    bulk_sequences: int = 100
    submitters: int = 4
    budget_tokens: int = 8192
    graphs: int = 50
    race_steps: int = 1000
    samples: int = 300
    section_s: float = 40.0
    matrix: int = 8192
    copy_bytes: int = 1 << 30


REHEARSAL = Sizes(
    pass_tokens=(16, 64),
    latency_tokens=(16, 64),
    scoring=(2, 3),
    scoring_tokens=32,
    bulk_tokens=(16, 64),
    bulk_sequences=6,
    submitters=2,
    budget_tokens=128,
    graphs=4,
    race_steps=20,
    samples=3,
    section_s=2.0,
    matrix=64,
    copy_bytes=1 << 16,
)


@dataclass(slots=True, kw_only=True)
class Bench:
    """One run of the check.

    flops_per_s, bytes_per_s: the card's ceilings as measured at the start of this run
    driver: the version of the card's driver; every row carries it, beside card and packages
    """

    runtime: Runtime
    installed: frozenset[BackendName]
    fused: FusedKernels
    settings: EngineSettings
    sizes: Sizes
    shapes: tuple[Shape, ...]
    folder: Path
    log: Callable[[str], None]
    deadline: float
    rows: list[Row] = field(default_factory=list[Row])
    flops_per_s: float = 0.0
    bytes_per_s: float = 0.0
    driver: str = "none"

    @property
    def machine(self) -> str:
        return f"{self.runtime.name}, driver {self.driver}, {machine_line()}"

    @property
    def versions(self) -> Mapping[str, str]:
        kernels = versions("triton", "flashinfer-python", "flash-attn-4")
        return {**kernels, "torch": torch.__version__, "cuda": torch.version.cuda or "none"}

    @property
    def on_card(self) -> bool:
        return self.runtime.device.type == "cuda"

    def model(self, shape: Shape) -> Path:
        return write_model(shape, self.folder / shape.name.replace(" ", "-"))

    def floor_ms(self, shape: Shape, seqlens: list[int]) -> float:
        return shape.floor_s(seqlens, self.flops_per_s, self.bytes_per_s) * 1e3

    def add(self, suite: str, case: str, engine: str, unit: str, samples: int, **more: Any) -> None:
        """One line of the table; shown at once, because a run may be cut short."""
        where = {"machine": self.machine, "versions": self.versions}
        row = Row(
            suite=suite, case=case, engine=engine, unit=unit, samples=samples, **where, **more
        )
        self.rows.append(row)
        figures = [row.rate, row.p50]
        first = next((f for f in figures if f is not None), 0.0)
        self.log(
            f"{suite}: {case}, {engine}: {first:.4g} {unit} {dict(row.extra) or ''} {row.note}"
        )

    def add_times(
        self, suite: str, case: str, engine: str, times_ms: list[float], **more: Any
    ) -> None:
        self.add(suite, case, engine, "ms", len(times_ms), **percentiles(times_ms), **more)

    def until(self, seconds: float) -> float:
        """The end of a piece of work that may take so long, within the run's deadline."""
        return min(time.monotonic() + seconds, self.deadline)

    @contextmanager
    def engine(
        self, shape: Shape, *, only: BackendName | None = None, **changes: Any
    ) -> Iterator[Engine]:
        """A loaded model with its own threads; memory is given back at the end.

        only: the attention to use, with nothing but SDPA to fall back on; see `attention_of`
        """
        if only is not None:
            changes["attention"] = only
        settings = replace(self.settings, **changes)
        installed = self.installed if only is None else self.installed & {only, "sdpa"}
        device = CudaDevice(self.runtime, settings, self.log, installed=installed, fused=self.fused)
        host = EngineHost(device)
        try:
            yield host.load(ModelSpec(alias="m", folder=self.model(shape)), settings, self.log)
        finally:
            host.close()
            self.runtime.trim()


def attention_of(engine: Engine) -> str:
    """The attention kernels an engine really ran, joined by "+"."""
    return engine._executor.attention  # type: ignore[attr-defined]


def driver_version() -> str:
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip().partition("\n")[0]


def random_batch(shape: Shape, seqlens: list[int], seed: int = 0) -> RaggedBatch:
    rng = np.random.default_rng(seed)
    return RaggedBatch.of([rng.integers(1, shape.vocab, n).tolist() for n in seqlens])


def even(tokens: int, longest: int) -> list[int]:
    """`tokens` as sequences of at most `longest`."""
    return [longest] * (tokens // longest) + [tokens % longest] * (tokens % longest > 0)


def vectors(engine: Engine, batch: RaggedBatch, lane: Lane = Lane.QUERY) -> np.ndarray:
    """float32 [num_seqs, dimension]; raises the first row's error."""
    rows = engine.step(batch, lane).result().rows
    for row in rows:
        if not isinstance(row, tuple):
            raise row
    return np.stack([row[0] for row in rows if isinstance(row, tuple)])


def timed(call: Callable[[], Any], *, samples: int, end: float, warm: int = 3) -> list[float]:
    """Milliseconds of each call, after `warm` unmeasured ones; at least one."""
    for _ in range(warm):
        call()
    times: list[float] = []
    while len(times) < samples and (not times or time.monotonic() < end):
        begin = time.perf_counter()
        call()
        times.append((time.perf_counter() - begin) * 1e3)
    return times


def pipelined(engine: Engine, batches: list[RaggedBatch], depth: int = 2) -> float:
    """Seconds for a list of bulk batches with `depth` of them on the card at once."""
    begin = time.perf_counter()
    flying: deque[Any] = deque()
    for batch in batches:
        if len(flying) == depth:
            flying.popleft().result()
        flying.append(engine.step(batch, Lane.BULK))
    for lazy in flying:
        lazy.result()
    return time.perf_counter() - begin


def ceilings(bench: Bench) -> None:
    """Measure what this card does at best: a big bf16 product, a big copy."""
    device, n = bench.runtime.device, bench.sizes.matrix
    dtype = torch.bfloat16 if bench.on_card else torch.float32
    a, b = (torch.randn(n, n, device=device, dtype=dtype) for _ in range(2))
    source = torch.zeros(bench.sizes.copy_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)

    def product() -> None:
        torch.mm(a, b)
        bench.runtime.settle()

    def copy() -> None:
        target.copy_(source)
        bench.runtime.settle()

    end = bench.until(5.0)
    product_ms = min(timed(product, samples=10, end=end))
    copy_ms = min(timed(copy, samples=10, end=end))
    bench.flops_per_s = 2.0 * n**3 / product_ms * 1e3
    bench.bytes_per_s = 2.0 * source.numel() / copy_ms * 1e3
    bench.add("ceiling", f"bf16 {n} cubed", "torch", "TFLOP/s", 10, rate=bench.flops_per_s / 1e12)
    bench.add("ceiling", "copy", "torch", "TB/s", 10, rate=bench.bytes_per_s / 1e12)
