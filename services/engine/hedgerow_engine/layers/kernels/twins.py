"""The fused kernels in plain torch: what each one means, and what runs where Triton does not."""

from __future__ import annotations

import torch
from torch import Tensor

from hedgerow_engine.layers.kernels.base import Pooled
from hedgerow_engine.layers.ops import Activation, Norm, activate
from hedgerow_engine.layers.rotary import Rotation
from hedgerow_shared.modelcard import PoolingMode

TINY = 1e-12


class TorchKernels:
    """Satisfies `FusedKernels`."""

    name = "torch"

    def add_norm(
        self, x: Tensor, bias: Tensor | None, residual: Tensor | None, norm: Norm
    ) -> tuple[Tensor, Tensor]:
        total = x.float()
        if bias is not None:
            total = total + bias
        if residual is not None:
            total = total + residual
        return normed(total, norm).to(x.dtype), total.to(x.dtype)

    def norm(self, x: Tensor, norm: Norm) -> Tensor:
        return normed(x.float(), norm).to(x.dtype)

    def bias_activation(self, x: Tensor, bias: Tensor | None, activation: Activation) -> Tensor:
        total = x.float() if bias is None else x.float() + bias
        return activate(total, activation).to(x.dtype)

    def gated(self, x: Tensor, activation: Activation) -> Tensor:
        gate, up = x.float().chunk(2, dim=-1)
        return (activate(gate, activation) * up).to(x.dtype)

    def norm_rope(self, x: Tensor, rotation: Rotation, norm: Norm | None) -> Tensor:
        value = x.float()
        if norm is not None:
            value = normed(value, norm)
        first, second = value.chunk(2, dim=-1)
        turned = torch.cat((-second, first), dim=-1)
        return (value * rotation.cos + turned * rotation.sin).to(x.dtype)

    def embed_norm(
        self,
        words: tuple[Tensor, Tensor],
        positions: tuple[Tensor, Tensor] | None,
        types: tuple[Tensor, Tensor] | None,
        norm: Norm,
        dtype: torch.dtype,
    ) -> Tensor:
        total = torch.embedding(*words).float()
        for pair in (positions, types):
            if pair is not None:
                total = total + torch.embedding(*pair)
        return normed(total, norm).to(dtype)

    def pool(
        self,
        x: Tensor,
        starts: Tensor,
        ends: Tensor,
        mode: PoolingMode,
        positions: Tensor | None = None,
    ) -> Pooled:
        return finished(self.reduce(x, starts, ends, mode, positions))

    def reduce(
        self,
        x: Tensor,
        starts: Tensor,
        ends: Tensor,
        mode: PoolingMode,
        positions: Tensor | None = None,
    ) -> Tensor:
        rows = torch.zeros(starts.shape[0], x.shape[1], dtype=torch.float32, device=x.device)
        for row, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
            if end > start:
                offset = 0 if positions is None else int(positions[start])
                rows[row] = reduced(x[start:end].float(), mode, offset)
        return rows


def normed(x: Tensor, norm: Norm) -> Tensor:
    """float32 in and out."""
    if norm.kind == "layer":
        return torch.layer_norm(x, norm.weight.shape, norm.weight, norm.bias, norm.eps)
    scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + norm.eps)
    return x * scale * norm.weight


def reduced(x: Tensor, mode: PoolingMode, offset: int) -> Tensor:
    """float32 [length, width] -> float32 [width]; x begins at place `offset` of its sequence."""
    length = x.shape[0]
    if mode == "cls":
        return x[0]
    if mode == "lasttoken":
        return x[-1]
    if mode == "max":
        return x.amax(0)
    if mode == "weightedmean":
        weights = torch.arange(length, dtype=torch.float32, device=x.device) + (offset + 1)
        return weights @ x / weights.sum()
    return x.sum(0) / (length**0.5 if mode == "mean_sqrt_len" else length)


def finished(rows: Tensor) -> Pooled:
    """The other three forms of pooled float32 rows."""
    unit = rows / torch.linalg.vector_norm(rows, dim=1, keepdim=True).clamp_min(TINY)
    peak = unit.abs().amax(1, keepdim=True).clamp_min(TINY)
    whole = torch.round(unit * (127.0 / peak)).to(torch.int8)
    return Pooled(rows, unit, whole, packed_signs(rows))


def packed_signs(rows: Tensor) -> Tensor:
    """uint8 [rows, ceil(width / 8)]: 1 where positive, high bit first."""
    positive = torch.nn.functional.pad(rows > 0, (0, -rows.shape[1] % 8))
    eights = positive.view(rows.shape[0], -1, 8).to(torch.int32)
    weights = 1 << torch.arange(7, -1, -1, device=rows.device, dtype=torch.int32)
    return (eights * weights).sum(-1).to(torch.uint8)
