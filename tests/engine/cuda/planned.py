"""A card on which host code runs at the launch of a pass, and an attention backend that plans.

The plain rehearsal runs a whole pass when its turn comes. On a card only kernels wait: the Python
around them runs at once, and with it a plan, which writes pinned tables and queues their copy. So
a launch or a capture here first walks through the pass on the memory it will find, keeps what host
code did meanwhile, and puts the memory back.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from hedgerow_engine.attention import flashinfer
from hedgerow_engine.attention.base import AttentionSpec
from hedgerow_engine.attention.sdpa import one_sequence
from hedgerow_engine.device.cuda.device import CudaDevice
from hedgerow_engine.device.cuda.executor import CudaExecutor
from hedgerow_engine.device.cuda.rehearsal import (
    Operation,
    Rehearsal,
    RehearsalGraph,
    RehearsalStream,
)
from hedgerow_engine.layers.kernels.twins import TorchKernels
from hedgerow_engine.weights import Weights
from hedgerow_shared.modelcard import read_card
from tests.engine.cuda.conftest import settings


class PlanningStream(RehearsalStream):
    """walking: the host code of a pass runs, its kernels on memory that is put back"""

    _card: PlanningCard

    def __init__(self, card: PlanningCard) -> None:
        super().__init__(card)
        self.walking = False
        self._inputs: tuple[Tensor, Tensor] | None = None

    @contextmanager
    def current(self) -> Iterator[None]:
        before, self._card.current = self._card.current, self
        try:
            yield
        finally:
            self._card.current = before

    def copy_in(self, target: Tensor, source: Tensor) -> None:
        self._inputs = (target, source)
        super().copy_in(target, source)

    def copy_out(self, target: Tensor, source: Tensor) -> None:
        inputs = self._inputs
        super().copy_out(target, source)
        self._inputs = inputs

    def launch(self, work: Operation) -> None:
        self._walk(work)
        super().launch(work)

    def capture(self, work: Operation) -> RehearsalGraph:
        self._walk(work)
        return super().capture(work)

    def _walk(self, work: Operation) -> None:
        memory = list(self._card.memory)
        assert self._inputs is not None, "a pass is staged before it is launched"
        with torch.inference_mode():
            kept = [tensor.clone() for tensor in memory]
            self._inputs[0].copy_(self._inputs[1])
            self.walking = True
            try:
                with self.current():
                    work()
            finally:
                self.walking = False
                for tensor, before in zip(memory, kept, strict=True):
                    tensor.copy_(before)


class PlanningCard(Rehearsal):
    """memory: all of the device's, to put it back after a walk"""

    def __init__(self) -> None:
        super().__init__()
        self.memory: list[Tensor] = []
        self.current: PlanningStream | None = None

    def stream(self, *, urgent: bool) -> PlanningStream:
        stream = PlanningStream(self)
        self.streams.append(stream)
        return stream

    def zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        tensor = super().zeros(shape, dtype)
        self.memory.append(tensor)
        return tensor

    def copy_soon(self, target: Tensor, source: Tensor) -> None:
        """What foreign code does: a copy from pinned memory on the current stream."""

        def copy() -> None:
            target.copy_(source)

        stream = self.current
        assert stream is not None, "a plan outside of a stream goes to the default one"
        if stream.walking or not stream.queued:
            with torch.inference_mode():
                copy()
        if stream.walking or stream.queued:
            stream.push(copy)


class PlannedWrapper:
    """FlashInfer's wrapper as the engine uses it. A pass computes what its table says, and the
    table is on the device only once its copy has run."""

    def __init__(self, card: PlanningCard, *args: Any, **named: Any) -> None:
        assert named["use_cuda_graph"] is True and named["backend"] in ("fa2", "fa3")
        self._card, self._rows = card, 0
        self._int_workspace_buffer = self._pin_memory_int_workspace_buffer = torch.zeros(0)

    def plan(
        self,
        qo_indptr: Tensor,
        kv_indptr: Tensor,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        *,
        causal: bool,
        window_left: int,
        sm_scale: float,
        **named: Any,
    ) -> None:
        window = None if window_left < 0 else window_left
        self._spec = AttentionSpec(num_heads, num_kv_heads, head_dim, sm_scale, causal, window)
        self._rows, count = int(qo_indptr[-1]), qo_indptr.numel()
        used = slice(0, 4 * (count + 1))
        table = self._pin_memory_int_workspace_buffer[used]
        with torch.inference_mode():
            table.view(torch.int32)[0] = count
            table.view(torch.int32)[1:] = qo_indptr
        self._card.copy_soon(self._int_workspace_buffer[used], table)

    def run(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        assert q.shape[0] == self._rows, "FlashInfer refuses rows that were not planned"
        numbers = self._int_workspace_buffer.view(torch.int32)
        bounds: list[int] = numbers[1 : 1 + int(numbers[0])].tolist()
        out = torch.zeros(q.shape, dtype=q.dtype)
        for start, end in pairwise(bounds):
            if end > start:
                rows = slice(start, end)
                out[rows] = one_sequence(q[rows], k[rows], v[rows], self._spec)
        return out


def open_planned(
    card: PlanningCard, folder: Path, monkeypatch: pytest.MonkeyPatch, **changes: Any
) -> CudaExecutor:
    """A model whose attention is planned, on a Hopper that has nothing but "FlashInfer"."""
    monkeypatch.setattr(flashinfer, "_wrapper", lambda: partial(PlannedWrapper, card))
    device = CudaDevice(
        card,
        settings(**({"dtype": "bfloat16"} | changes)),
        [].append,
        installed=frozenset({"flashinfer_fa3", "sdpa"}),
        fused=TorchKernels(),
    )
    return device.build(read_card(folder), Weights.open(folder))
