"""Pooling on a card: one kernel from token rows to float32, unit, int8 and packed rows."""

from __future__ import annotations

from torch import Tensor

from hedgerow_engine.attention.lengths import Lengths
from hedgerow_engine.layers.kernels.base import FusedKernels
from hedgerow_engine.staging import Layout
from hedgerow_shared.modelcard import PoolingMode


class CudaPooler:
    """Satisfies `Pooler` and `FinishingPooler` for one graph key: ranges are on the device."""

    def __init__(self, kernels: FusedKernels, lengths: Lengths) -> None:
        self._kernels, self._lengths = kernels, lengths

    def plan(self, layout: Layout) -> None:
        """Nothing: the ranges arrive with the batch."""

    def run(self, hidden_states: Tensor, mode: PoolingMode, slots: int) -> Tensor:
        at = self._lengths
        return self._kernels.pool(hidden_states, at.pool_starts, at.pool_ends, mode).pooled

    def finish(self, hidden_states: Tensor, mode: PoolingMode) -> dict[str, Tensor]:
        at = self._lengths
        made = self._kernels.pool(hidden_states, at.pool_starts, at.pool_ends, mode)
        return made._asdict()
