"""The signatures of the fused kernels."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from hedgerow_engine.layers.ops import Activation, Norm
from hedgerow_engine.layers.rotary import Rotation
from hedgerow_shared.modelcard import PoolingMode

GATES: dict[str, str] = {
    "silu": "silu_and_mul",
    "gelu": "gelu_and_mul",
    "gelu_tanh": "gelu_tanh_and_mul",
}
"""FlashInfer's name of each gated activation."""


class Pooled(NamedTuple):
    """What one pooling kernel writes. A row of an empty range is zero in all of them.

    pooled: float32 [slots, width]
    unit: float32 [slots, width], scaled to length 1
    int8: int8 [slots, width], `unit` scaled so that its largest number is 127
    bits: uint8 [slots, ceil(width / 8)], 1 where a number is positive, high bit first
    """

    pooled: Tensor
    unit: Tensor
    int8: Tensor
    bits: Tensor


class FusedKernels(Protocol):
    """Everything computes in float32 inside and answers in the dtype it was given."""

    @property
    def name(self) -> str: ...

    def add_norm(
        self, x: Tensor, bias: Tensor | None, residual: Tensor | None, norm: Norm
    ) -> tuple[Tensor, Tensor]:
        """(norm(s), s) with s = x + bias + residual. x: [rows, width], may be overwritten;
        bias: float32 [width]; residual: like x, may be overwritten (it holds s afterwards)."""
        ...

    def norm(self, x: Tensor, norm: Norm) -> Tensor:
        """The norm of the last axis of x [..., width]."""
        ...

    def bias_activation(self, x: Tensor, bias: Tensor | None, activation: Activation) -> Tensor:
        """activation(x + bias); x: [rows, width], bias: float32 [width]."""
        ...

    def gated(self, x: Tensor, activation: Activation) -> Tensor:
        """x [rows, 2 * width] -> activation(first half) * second half."""
        ...

    def norm_rope(self, x: Tensor, rotation: Rotation, norm: Norm | None) -> Tensor:
        """x [tokens, heads, head_dim], strided by tokens at will: each head RMS-normed if there
        is a norm, then turned by the rotation."""
        ...

    def embed_norm(
        self,
        words: tuple[Tensor, Tensor],
        positions: tuple[Tensor, Tensor] | None,
        types: tuple[Tensor, Tensor] | None,
        norm: Norm,
        dtype: torch.dtype,
    ) -> Tensor:
        """norm(sum of table rows) as `dtype`. Each pair: table [rows, width], int32 [tokens]."""
        ...

    def pool(
        self,
        x: Tensor,
        starts: Tensor,
        ends: Tensor,
        mode: PoolingMode,
        positions: Tensor | None = None,
    ) -> Pooled:
        """Rows [starts[i], ends[i]) of x [tokens, width] reduced by `mode`; int32 [slots].

        positions: int32 [tokens], each row's place in its sequence, by which "weightedmean"
            weights; None = every range begins a sequence
        """
        ...

    def reduce(
        self,
        x: Tensor,
        starts: Tensor,
        ends: Tensor,
        mode: PoolingMode,
        positions: Tensor | None = None,
    ) -> Tensor:
        """`pooled` of `pool` alone, for rows of any width: a vocabulary's, for example."""
        ...
