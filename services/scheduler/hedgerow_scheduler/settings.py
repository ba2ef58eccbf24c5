"""Every switch of a worker process, with the line `--help` prints for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

import msgspec

from hedgerow_scheduler.packer import Policy
from hedgerow_shared.bus import BusOptions
from hedgerow_shared.service_settings import Count, Seconds, ServiceSettings

Share = Annotated[float, msgspec.Meta(ge=0, le=1)]


BULK_PASSES: Mapping[str, tuple[int, int]] = {"cpu": (512, 256), "gpu": (8192, 2048)}
"""Tokens of a bulk pass in quiet and while queries come (docs/decisions/0142)."""


class Settings(ServiceSettings, frozen=True, kw_only=True):
    """Filled by `hedgerow_shared.config.load`: flag > environment > file > default."""

    worker_id: str = ""

    reply_prefix: tuple[str, ...] = ("_INBOX",)

    device: str = "auto"
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    threads: Count = 1
    cpu_executor: Literal["auto", "native", "packed"] = "auto"
    graph_cache: Count = 256
    graph_max_tokens: Count = 8192
    graph_inflection: Annotated[int, msgspec.Meta(ge=-1)] = -1
    graph_reserve_mb: Annotated[int, msgspec.Meta(ge=0)] = 1024
    attention: str = "auto"
    priorities: Literal["on", "off"] = "on"
    fp8: Literal["on", "off"] = "off"

    budget_tokens: Count = 512
    bulk: Literal["on", "off"] = "on"
    bulk_pass_tokens: Annotated[int, msgspec.Meta(ge=0)] = 0
    bulk_pass_busy_tokens: Annotated[int, msgspec.Meta(ge=0)] = 0
    bulk_floor: Share = 0.2
    bulk_quiet_s: Seconds = 1.0
    bulk_version_wait_s: Seconds = 3600.0
    fill: Literal["auto", "on", "off"] = "auto"
    backlog_tokens: Count = 65_536
    depth: Annotated[int, msgspec.Meta(ge=1, le=8)] = 2

    allow_mixed_fleet: bool = False
    hung_s: Seconds = 120.0

    fake_ms: Annotated[float, msgspec.Meta(ge=0)] = 16.0
    fake_floor_ms: Annotated[float, msgspec.Meta(ge=0)] = 2.0
    fake_raise_id: int = -1
    fake_kill_id: int = -1
    fake_hang_id: int = -1
    fake_version: str = "fake"
    fake_skew: float = 0.0

    __help__: ClassVar[Mapping[str, str]] = {
        **ServiceSettings.__help__,
        "worker_id": "this worker's name on the bus; random if empty",
        "reply_prefix": "chunks are answered only on subjects that begin like this; repeatable",
        "device": "auto, cpu, cuda, cuda:N, or fake: an engine that only takes time",
        "dtype": "auto, float32, bfloat16 or float16",
        "threads": "threads of the CPU engine",
        "cpu_executor": "auto, native (generated kernels) or packed (torch)",
        "graph_cache": "captured shapes kept, least recently used dropped first",
        "graph_max_tokens": "passes of more tokens never run as a graph",
        "graph_inflection": "GPU: passes of more tokens run without a graph; -1: measure it",
        "graph_reserve_mb": "GPU: memory that graphs leave free; short of it the oldest one goes",
        "attention": "GPU: auto, or the kernel to try first: flashinfer_fa3, flashinfer_fa2, fa4, "
        "varlen, sdpa",
        "priorities": "GPU: bulk on a stream of its own that queries overtake: on or off",
        "fp8": "GPU: multiply in float8, at a cosine of its own: on or off",
        "budget_tokens": "an online batch is filled until it costs this",
        "bulk": "off: take no jobs from the stream, only what somebody waits for",
        "bulk_pass_tokens": "the same for bulk in quiet times; 0: 512 on a CPU, else 8192",
        "bulk_pass_busy_tokens": "the same for bulk while queries come; 0: 256 on a CPU, else 2048",
        "bulk_floor": "share of all tokens that bulk gets while it waits",
        "bulk_quiet_s": "no query for this long counts as quiet",
        "bulk_version_wait_s": "bulk rows for a version of the model that nobody serves get an "
        "error after this long",
        "fill": "fill online batches up with bulk: on, off, or auto (on where there is a GPU)",
        "backlog_tokens": "refuse work (429) that would find more than this before it",
        "depth": "batches on the device at once: one runs, the rest are queued",
        "allow_mixed_fleet": "join although workers of the same model compute something else",
        "hung_s": "a step that takes longer ends the process, for its supervisor to restart",
        "fake_ms": "--device fake: milliseconds for 4,096 tokens",
        "fake_floor_ms": "--device fake: least milliseconds of a step",
        "fake_raise_id": "--device fake: a step with this token id raises",
        "fake_kill_id": "--device fake: a step with this token id kills the process",
        "fake_hang_id": "--device fake: a step with this token id never ends",
        "fake_version": "--device fake: its fingerprint",
        "fake_skew": "--device fake: how far its vectors are from those of others",
    }

    def bus_options(self, worker_id: str, use: str = "") -> BusOptions:
        return self.connection(f"hedgerow-worker-{worker_id}", use)

    def policy(self, device_name: str) -> Policy:
        """How batches are cut on this device; see Policy.fill for what `auto` decides."""
        on_gpu = not device_name.startswith("cpu")
        quiet, busy = BULK_PASSES["gpu" if device_name.startswith("cuda") else "cpu"]
        bulk_pass = self.bulk_pass_tokens or quiet
        return Policy(
            budget=self.budget_tokens,
            bulk_pass=bulk_pass,
            bulk_pass_busy=min(self.bulk_pass_busy_tokens or busy, bulk_pass),
            bulk_floor=self.bulk_floor,
            quiet_s=self.bulk_quiet_s,
            fill=on_gpu if self.fill == "auto" else self.fill == "on",
        )
