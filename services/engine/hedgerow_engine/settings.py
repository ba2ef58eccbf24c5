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
    warmup_s: time a model may spend at start on the shapes of short queries; 0 = none
    """

    device: str = "auto"
    dtype: DTypeChoice = "auto"
    threads: int = 1
    cpu_executor: CpuExecutor = "auto"
    graph_cache: int = 256
    graph_max_tokens: int = 8192
    warmup_s: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """One model to load: its name on the bus, its folder, and the length asked for (or None)."""

    alias: str
    folder: Path
    max_seq_len: int | None = None
