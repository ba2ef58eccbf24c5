"""Pooling on a card: token rows to float32 rows, or at once to unit, int8 and packed ones, too."""

from __future__ import annotations

from torch import Tensor

from hedgerow_engine.attention.lengths import Lengths
from hedgerow_engine.layers.kernels.base import FusedKernels
from hedgerow_engine.staging import Layout
from hedgerow_shared.modelcard import PoolingMode


class CudaPooler:
    """Satisfies `Pooler` and `FinishingPooler` for one graph key: ranges are on the device."""

    def __init__(self, kernels: FusedKernels, lengths: Lengths, positions: Tensor) -> None:
        self._kernels, self._lengths, self._positions = kernels, lengths, positions

    def plan(self, layout: Layout) -> None:
        """Nothing: the ranges arrive with the batch."""

    def run(self, hidden_states: Tensor, mode: PoolingMode, slots: int) -> Tensor:
        starts, ends = self._lengths.pool_starts, self._lengths.pool_ends
        return self._kernels.reduce(hidden_states, starts, ends, mode, self._positions)

    def finish(self, hidden_states: Tensor, mode: PoolingMode) -> dict[str, Tensor]:
        starts, ends = self._lengths.pool_starts, self._lengths.pool_ends
        return self._kernels.pool(hidden_states, starts, ends, mode, self._positions)._asdict()
