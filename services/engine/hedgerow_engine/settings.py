"""How an engine is opened: which device, which numbers, how many threads, how many graphs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

DTypeChoice = Literal["auto", "float32", "bfloat16", "float16"]
CpuExecutor = Literal["auto", "native", "packed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """Settings of one host (one device, one engine thread, any number of models).

    device: "auto", "cpu", "cuda" or "cuda:N"
    dtype: "auto" takes bfloat16 where the device multiplies it natively, else float32
    threads: CPU threads of one forward pass
    graph_cache: graphs kept per model before the least recently used one goes
    graph_max_tokens: passes above this run eagerly: they hide their launches anyway
    graph_inflection: None lets a GPU measure that point for each model, below graph_max_tokens
    graph_reserve_mb: GPU memory that graphs leave free; short of it the oldest graph goes
    graph_hits: folder of the hit counts by which a restarted worker records hot shapes while
        idle; None = under the user's cache folder, "" = keep none
    depth: batches on the device at once (one runs, the rest are queued); staging has one more
    attention: "auto", or the GPU kernel to try first (flashinfer_fa3, flashinfer_fa2, fa4,
        varlen, sdpa)
    priorities: bulk batches run on a stream of their own that queries overtake
    fp8: multiply in float8 where a GPU can: half the weight bytes, a cosine of its own
    warmup_s: time a model may spend at start on the shapes of short queries; 0 = none
    """

    device: str = "auto"
    dtype: DTypeChoice = "auto"
    threads: int = 1
    cpu_executor: CpuExecutor = "auto"
    graph_cache: int = 256
    graph_max_tokens: int = 8192
    graph_inflection: int | None = None
    graph_reserve_mb: int = 1024
    graph_hits: str | None = None
    depth: int = 2
    attention: str = "auto"
    priorities: bool = True
    fp8: bool = False
    warmup_s: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """One model to load: its name on the bus, its folder, and the length asked for (or None)."""

    alias: str
    folder: Path
    max_seq_len: int | None = None
