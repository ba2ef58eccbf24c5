"""The packed executor: a torch model over ragged batches, replayed from recorded plans."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hedgerow_engine import buckets
from hedgerow_engine.attention.cpu import CpuAttention
from hedgerow_engine.device.packed_ops import PackedOps, packed_works
from hedgerow_engine.device.recorder import Plan, record
from hedgerow_engine.executor import Pass, Ready
from hedgerow_engine.graphs import CaptureError, GraphRunner, Key
from hedgerow_engine.models.base import Model, ModelInputs
from hedgerow_engine.models.registry import load_model
from hedgerow_engine.pooling import CpuPooler
from hedgerow_engine.settings import EngineSettings
from hedgerow_engine.staging import PAD, Layout, fill, lay_out
from hedgerow_engine.weights import Weights
from hedgerow_shared.modelcard import ModelCard
from hedgerow_shared.ragged import EMBED, OutputSpec, RaggedBatch, Task

Outputs = dict[str, Tensor]
_CAPACITY_TOKENS = 16384


class PackedForward:
    """Runs and records a model over static inputs that all its shapes share. A `Forward`."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._attention, self._pooler = CpuAttention(), CpuPooler()
        self.capacity = 0
        self.grow(_CAPACITY_TOKENS)

    def grow(self, capacity: int) -> None:
        """Replace the static inputs by bigger ones: plans recorded before are worthless."""
        self._static = tuple(torch.zeros(capacity, dtype=torch.int32) for _ in range(3))
        self.capacity = capacity

    def stage(self, batch: RaggedBatch, layout: Layout, bucket: int) -> None:
        """Write a batch into the static inputs and plan what depends on its lengths."""
        ids, positions, types = (t[:bucket].numpy() for t in self._static)
        fill(batch, layout, ids, positions, types)
        self._attention.plan(layout)
        self._pooler.plan(layout)

    def eager(self, key: Key) -> Outputs:
        return self._model.run(self._inputs(key), key.heads)

    def capture(self, key: Key) -> tuple[Plan, Outputs]:
        inputs = self._inputs(key)
        try:
            return record(lambda: self._model.run(inputs, key.heads))
        except NotImplementedError as error:
            raise CaptureError(str(error)) from error

    def _inputs(self, key: Key) -> ModelInputs:
        ids, positions, types = (t[: key.tokens] for t in self._static)
        return ModelInputs(ids, positions, types, self._attention, self._pooler, key.slots)


class PackedExecutor:
    """One model on the CPU through torch. Satisfies `Executor`; the pass ends in `launch`."""

    def __init__(
        self, card: ModelCard, model: Model, ops: PackedOps, settings: EngineSettings
    ) -> None:
        self._card, self._model = card, model
        self._include_prompt = card.pooling.include_prompt
        self.name = "packed" if ops.packed else "plain torch"
        self.dtype = str(ops.dtype).removeprefix("torch.")
        self.numerics = f"torch-cpu-{self.dtype}"
        self.tasks: frozenset[Task] = frozenset(model.heads)
        self._forward = PackedForward(model)
        self.graphs = GraphRunner[Outputs](
            self._forward, limit=settings.graph_cache, max_tokens=settings.graph_max_tokens
        )

    def launch(self, batch: RaggedBatch, heads: tuple[Task, ...]) -> Ready:
        """Stage, then run, record or replay; the answer is copied to the host before return."""
        with torch.inference_mode():
            layout, key = self._stage(batch, heads)
            outputs = self.graphs.run(key, batch.num_tokens)
        return Ready(_to_host(outputs, layout, self._model.first_token))

    def warm(self, seconds: float) -> None:
        """Single sequences from 1 to 64 tokens, until the time is spent: oneDNN generates its
        kernels for each new token count, about 4 ms that no query should pay."""
        end = time.monotonic() + seconds
        heads: tuple[Task, ...] = ("embed",) if "embed" in self.tasks else tuple(self.tasks)[:1]
        for length in range(1, min(buckets.EXACT_TOKENS, self._card.max_seq_len) + 1):
            if time.monotonic() >= end:
                return
            ids = np.full(length, PAD, np.int32)
            spec = EMBED if heads[0] == "embed" else OutputSpec(task=heads[0])
            with torch.inference_mode():
                _, key = self._stage(RaggedBatch.of([ids], spec), heads)
                self.graphs.warm(key)

    def close(self) -> None:
        self.graphs.clear()

    def stats(self) -> Mapping[str, float]:
        return {**self.graphs.counters.flat(), "graphs": len(self.graphs)}

    def _stage(self, batch: RaggedBatch, heads: tuple[Task, ...]) -> tuple[Layout, Key]:
        layout = lay_out(batch, include_prompt=self._include_prompt)
        bucket = buckets.cpu_tokens(batch.num_tokens)
        if bucket > self._forward.capacity:
            self.graphs.clear()
            self._forward.grow(bucket)
        self._forward.stage(batch, layout, bucket)
        return layout, Key(bucket, buckets.slots(layout.num_rows), heads)


def _to_host(outputs: Outputs, layout: Layout, first_token: int) -> Pass:
    """Views of the outputs, cut to the real rows, per-token ones put back in batch order."""
    rows: dict[str, Any] = {}
    for name, tensor in outputs.items():
        array = tensor.numpy()
        if name in ("token_weights", "token_vectors"):
            rows[name] = array[_token_order(layout)]
        else:
            rows[name] = array[: layout.num_rows if name in ("pooled", "unit") else layout.num_seqs]
    return Pass(**rows, first_token=first_token)


def _token_order(layout: Layout) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Staged row of each token of the batch."""
    lengths = layout.last - layout.first + 1
    begin = np.repeat(layout.first, lengths)
    within = np.arange(layout.num_tokens) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return begin + within


def build_packed(
    card: ModelCard, weights: Weights, settings: EngineSettings, log: Callable[[str], None]
) -> PackedExecutor:
    """Load a folder's weights into packed layers, on the engine thread. Raises StartupError."""
    # The count belongs to the calling thread under OpenMP.
    torch.set_num_threads(settings.threads)
    dtype = choose_dtype(settings)
    with torch.inference_mode():
        packed = packed_works(dtype)
        how = "oneDNN packed operators" if packed else "F.linear: packed operators do not work here"
        log(f"torch {torch.__version__}, {dtype}, {how}")
        ops = PackedOps(dtype, packed=packed)
        return PackedExecutor(card, load_model(card, weights, ops), ops, settings)


def choose_dtype(settings: EngineSettings) -> torch.dtype:
    """bfloat16 where the CPU multiplies it natively, float32 elsewhere, or what was asked for."""
    if settings.dtype != "auto":
        return torch.float32 if settings.dtype == "float32" else torch.bfloat16
    capabilities = torch.cpu.get_capabilities()
    fast = any(capabilities.get(k) for k in ("avx512_bf16", "amx_bf16", "bf16"))
    return torch.bfloat16 if fast else torch.float32
