"""From token rows to one row per sequence (or span), inside the pass but outside its shape.

Like attention it is one opaque call of a recorded plan: which rows belong to whom is new at
every step.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from hedgerow_engine.layers.opaque import opaque
from hedgerow_engine.staging import Layout
from hedgerow_shared.modelcard import PoolingMode


class Pooler(Protocol):
    """Ragged reductions on one device."""

    def plan(self, layout: Layout) -> None: ...

    def run(self, hidden_states: Tensor, mode: PoolingMode, slots: int) -> Tensor:
        """[num_tokens, width] -> float32 [slots, width]; rows past the planned ones are zero."""
        ...


@runtime_checkable
class FinishingPooler(Protocol):
    """A pooler whose one kernel also normalises, rounds to int8 and packs signs."""

    def finish(self, hidden_states: Tensor, mode: PoolingMode) -> dict[str, Tensor]:
        """-> the fields "pooled", "unit", "int8" and "bits" of `Pass`."""
        ...


@opaque
def pool(hidden_states: Tensor, pooler: Pooler, mode: PoolingMode, slots: int) -> Tensor:
    """`pooler.run` as one call of a plan."""
    return pooler.run(hidden_states, mode, slots)


class CpuPooler:
    """Groups of equal length are reduced together; odd ranges (spans, prompts) one by one."""

    def __init__(self) -> None:
        self._layout: Layout | None = None

    def plan(self, layout: Layout) -> None:
        self._layout = layout

    def run(self, hidden_states: Tensor, mode: PoolingMode, slots: int) -> Tensor:
        layout = self._layout
        assert layout is not None, "plan comes before run"
        out = torch.zeros(slots, hidden_states.shape[1])
        if mode in ("cls", "lasttoken"):
            rows = layout.pool_starts if mode == "cls" else layout.pool_ends - 1
            index = torch.from_numpy(rows).to(torch.int64)
            out[: layout.num_rows] = hidden_states.index_select(0, index)
        elif layout.whole:
            order = torch.from_numpy(layout.order).to(torch.int64)
            done = 0
            for start, n, length in layout.groups:
                part = hidden_states[start : start + n * length].view(n, length, -1)
                out.index_copy_(0, order[done : done + n], _reduce(part, mode))
                done += n
        else:
            ranges = zip(layout.pool_starts, layout.pool_ends, layout.pool_offsets, strict=True)
            for row, (start, end, offset) in enumerate(ranges):
                out[row] = _reduce(hidden_states[None, start:end], mode, int(offset))[0]
        return out


def _reduce(x: Tensor, mode: PoolingMode, offset: int = 0) -> Tensor:
    """[n, length, width] -> float32 [n, width]; x begins at place `offset` of its sequence."""
    length = x.shape[1]
    if mode == "max":
        return x.amax(1).float()
    if mode == "weightedmean":
        weights = torch.arange(offset + 1, offset + length + 1, dtype=torch.float32)
        return torch.einsum("nlw,l->nw", x.float(), weights / weights.sum())
    total = x.sum(1, dtype=torch.float32)
    return total / (length**0.5 if mode == "mean_sqrt_len" else length)
