"""RMSNorm, add + RMSNorm and gated activations of FlashInfer, over the Triton kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hedgerow_engine.attention.flashinfer import use_prebuilt_norms
from hedgerow_engine.layers.kernels.base import GATES
from hedgerow_engine.layers.kernels.fused import TritonKernels
from hedgerow_engine.layers.ops import Activation, Norm

_SIXTEEN = (torch.bfloat16, torch.float16)


class FlashInferKernels(TritonKernels):
    """What FlashInfer has, where its rounding of a norm's weight loses nothing."""

    name = "flashinfer+triton"

    def __init__(self) -> None:
        use_prebuilt_norms()
        import flashinfer

        self._library: Any = flashinfer
        self._weights: dict[tuple[int, torch.dtype], tuple[Tensor, Tensor | None]] = {}

    def add_norm(
        self, x: Tensor, bias: Tensor | None, residual: Tensor | None, norm: Norm
    ) -> tuple[Tensor, Tensor]:
        weight = self._exact(norm, x.dtype)
        if weight is None or residual is None or bias is not None or residual.dtype != x.dtype:
            return super().add_norm(x, bias, residual, norm)
        # In place: the residual becomes the sum, x its norm.
        self._library.fused_add_rmsnorm(x, residual, weight, norm.eps)
        return x, residual

    def norm(self, x: Tensor, norm: Norm) -> Tensor:
        weight = self._exact(norm, x.dtype)
        if weight is None or x.ndim != 2:
            return super().norm(x, norm)
        return self._library.rmsnorm(x, weight, norm.eps)

    def gated(self, x: Tensor, activation: Activation) -> Tensor:
        name = GATES.get(activation)
        # Its kernel moves 16 bytes at a time.
        if name is None or x.dtype not in _SIXTEEN or x.shape[1] % 16:
            return super().gated(x, activation)
        gate: Callable[..., Tensor] = getattr(self._library, name)
        return gate(x)

    def _exact(self, norm: Norm, dtype: torch.dtype) -> Tensor | None:
        """The weight as 16-bit numbers if they hold it exactly (checkpoints store it so)."""
        if norm.kind != "rms" or dtype not in _SIXTEEN:
            return None
        key = (id(norm.weight), dtype)
        kept = self._weights.get(key)
        # An id may return after its tensor is gone: the weight itself is kept beside, and asked.
        if kept is None or kept[0] is not norm.weight:
            short = norm.weight.to(dtype)
            same = bool((short.float() == norm.weight).all())
            kept = self._weights[key] = (norm.weight, short if same else None)
        return kept[1]
