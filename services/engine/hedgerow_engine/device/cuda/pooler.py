"""Pooling on a card: one kernel from token rows to float32, unit, int8 and packed rows."""

from __future__ import annotations

from torch import Tensor

from hedgerow_engine.attention.lengths import Lengths
from hedgerow_engine.layers.kernels.base import FusedKernels, Pooled
from hedgerow_engine.staging import Layout
from hedgerow_shared.modelcard import PoolingMode


class CudaPooler:
    """Satisfies `Pooler` and `FinishingPooler` for one graph key: ranges are on the device."""

    def __init__(self, kernels: FusedKernels, lengths: Lengths, positions: Tensor) -> None:
        self._kernels, self._lengths, self._positions = kernels, lengths, positions

    def plan(self, layout: Layout) -> None:
        """Nothing: the ranges arrive with the batch."""

    def run(self, hidden_states: Tensor, mode: PoolingMode, slots: int) -> Tensor:
        return self._pool(hidden_states, mode).pooled

    def finish(self, hidden_states: Tensor, mode: PoolingMode) -> dict[str, Tensor]:
        return self._pool(hidden_states, mode)._asdict()

    def _pool(self, hidden_states: Tensor, mode: PoolingMode) -> Pooled:
        starts, ends = self._lengths.pool_starts, self._lengths.pool_ends
        return self._kernels.pool(hidden_states, starts, ends, mode, self._positions)
