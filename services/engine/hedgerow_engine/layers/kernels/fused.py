"""The fused kernels launched through Triton: grids, block sizes and strides."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hedgerow_engine.layers.kernels import tritonpool, tritons
from hedgerow_engine.layers.kernels.base import Pooled
from hedgerow_engine.layers.ops import Activation, Norm
from hedgerow_engine.layers.rotary import Rotation
from hedgerow_shared.modelcard import PoolingMode

_FLAT_BLOCK = 1024
_POOL_TILE = 16384
_REDUCE_BLOCK = 512
_REDUCE_ROWS = 8


def power_of_two(value: int, least: int = 16) -> int:
    """The smallest power of two that holds `value` and is at least `least`."""
    return max(least, 1 << (value - 1).bit_length())


class TritonKernels:
    """Satisfies `FusedKernels`. Tensors are on the card (or anywhere, when interpreted)."""

    name = "triton"

    def add_norm(
        self, x: Tensor, bias: Tensor | None, residual: Tensor | None, norm: Norm
    ) -> tuple[Tensor, Tensor]:
        return self._add_norm(x, bias, residual, norm, keep_total=True)

    def norm(self, x: Tensor, norm: Norm) -> Tensor:
        flat = x.reshape(-1, x.shape[-1])
        return self._add_norm(flat, None, None, norm, keep_total=False)[0].view(x.shape)

    def bias_activation(self, x: Tensor, bias: Tensor | None, activation: Activation) -> Tensor:
        x = x.contiguous()
        out = torch.empty_like(x)
        if x.numel():
            grid = (-(-x.numel() // _FLAT_BLOCK),)
            _kernel(tritons.bias_activation, grid)(
                x,
                x if bias is None else bias,
                out,
                x.numel(),
                x.shape[-1],
                BIAS=bias is not None,
                ACT=activation,
                BLOCK=_FLAT_BLOCK,
            )
        return out

    def gated(self, x: Tensor, activation: Activation) -> Tensor:
        x = x.contiguous()
        rows, width = x.shape[0], x.shape[1] // 2
        out = torch.empty(rows, width, dtype=x.dtype, device=x.device)
        if rows:
            grid = (rows, -(-width // _FLAT_BLOCK))
            _kernel(tritons.gated, grid)(x, out, width, ACT=activation, BLOCK=_FLAT_BLOCK)
        return out

    def norm_rope(self, x: Tensor, rotation: Rotation, norm: Norm | None) -> Tensor:
        assert norm is None or norm.kind == "rms", "heads are RMS-normed"
        tokens, heads, dim = x.shape
        assert x.stride(2) == 1, "the numbers of a head lie side by side"
        out = torch.empty(tokens, heads, dim, dtype=x.dtype, device=x.device)
        if tokens:
            _kernel(tritons.norm_rope, (tokens,))(
                x,
                rotation.cos,
                rotation.sin,
                rotation.cos if norm is None else norm.weight,
                out,
                heads,
                dim // 2,
                x.stride(0),
                x.stride(1),
                0.0 if norm is None else norm.eps,
                NORM=norm is not None,
                HEADS=power_of_two(heads, 1),
                HALF=power_of_two(dim // 2),
            )
        return out

    def embed_norm(
        self,
        words: tuple[Tensor, Tensor],
        positions: tuple[Tensor, Tensor] | None,
        types: tuple[Tensor, Tensor] | None,
        norm: Norm,
        dtype: torch.dtype,
    ) -> Tensor:
        table, ids = words
        places, at = positions or words
        kinds, type_ids = types or words
        tokens, width = ids.shape[0], table.shape[1]
        out = torch.empty(tokens, width, dtype=dtype, device=table.device)
        if tokens:
            _kernel(tritons.embed_norm, (tokens,))(
                ids,
                table,
                at,
                places,
                type_ids,
                kinds,
                norm.weight,
                norm.weight if norm.bias is None else norm.bias,
                out,
                width,
                norm.eps,
                POSITIONS=positions is not None,
                TYPES=types is not None,
                SHIFT=norm.bias is not None,
                RMS=norm.kind == "rms",
                BLOCK=power_of_two(width),
            )
        return out

    def pool(
        self,
        x: Tensor,
        starts: Tensor,
        ends: Tensor,
        mode: PoolingMode,
        positions: Tensor | None = None,
    ) -> Pooled:
        slots, width = starts.shape[0], x.shape[1]
        block = power_of_two(width)
        made = Pooled(
            torch.empty(slots, width, dtype=torch.float32, device=x.device),
            torch.empty(slots, width, dtype=torch.float32, device=x.device),
            torch.empty(slots, width, dtype=torch.int8, device=x.device),
            torch.empty(slots, -(-width // 8), dtype=torch.uint8, device=x.device),
        )
        _kernel(tritonpool.pool, (slots,))(
            x,
            starts,
            ends,
            starts if positions is None else positions,
            *made,
            width,
            x.stride(0),
            made.bits.shape[1],
            MODE=mode,
            PLACED=mode == "weightedmean" and positions is not None,
            ROWS=max(1, min(32, _POOL_TILE // block)),
            BLOCK=block,
            num_warps=8,
        )
        return made

    def reduce(
        self,
        x: Tensor,
        starts: Tensor,
        ends: Tensor,
        mode: PoolingMode,
        positions: Tensor | None = None,
    ) -> Tensor:
        slots, width = starts.shape[0], x.shape[1]
        out = torch.empty(slots, width, dtype=torch.float32, device=x.device)
        _kernel(tritonpool.reduce, (slots, -(-width // _REDUCE_BLOCK)))(
            x,
            starts,
            ends,
            starts if positions is None else positions,
            out,
            width,
            x.stride(0),
            MODE=mode,
            PLACED=mode == "weightedmean" and positions is not None,
            ROWS=_REDUCE_ROWS,
            BLOCK=_REDUCE_BLOCK,
        )
        return out

    def _add_norm(
        self,
        x: Tensor,
        bias: Tensor | None,
        residual: Tensor | None,
        norm: Norm,
        *,
        keep_total: bool,
    ) -> tuple[Tensor, Tensor]:
        rows, width = x.shape
        out = torch.empty(rows, width, dtype=x.dtype, device=x.device)
        total = torch.empty_like(out) if keep_total else out
        if rows:
            _kernel(tritons.add_norm, (rows,))(
                x,
                norm.weight if bias is None else bias,
                x if residual is None else residual,
                norm.weight,
                norm.weight if norm.bias is None else norm.bias,
                out,
                total,
                width,
                x.stride(0),
                x.stride(0) if residual is None else residual.stride(0),
                norm.eps,
                BIAS=bias is not None,
                RESIDUAL=residual is not None,
                SHIFT=norm.bias is not None,
                TOTAL=keep_total,
                RMS=norm.kind == "rms",
                BLOCK=power_of_two(width),
            )
        return out, total


def _kernel(function: Any, grid: tuple[int, ...]) -> Any:
    """A Triton function bound to its grid."""
    return function[grid]
