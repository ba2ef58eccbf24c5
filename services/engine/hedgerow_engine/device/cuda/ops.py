"""Layers on a card: cuBLAS products with everything around them fused. Satisfies `Ops`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, cast

import torch
from torch import Tensor
from torch.nn.functional import linear as product

from hedgerow_engine.device.cuda.fp8 import Fp8Weight
from hedgerow_engine.device.packed_ops import PlainLinear, wrap
from hedgerow_engine.layers.kernels.base import FusedKernels
from hedgerow_engine.layers.ops import Activation, GatedLinear, Linear, Norm
from hedgerow_engine.layers.rotary import Rotation
from hedgerow_engine.weightfile import RawTensor

Product = Callable[[Tensor], Tensor]


class _HasParts(Protocol):
    """A linear whose bias another kernel can take over."""

    bias: Tensor | None

    def product(self, x: Tensor) -> Tensor: ...


class CudaLinear:
    """x @ W.T by cuBLAS (or in float8); bias, activation and residual ride on other kernels.

    bias: float32 [out], for fused kernels
    """

    def __init__(
        self,
        weight: Product | Tensor,
        bias: Tensor | None,
        activation: Activation | None,
        kernels: FusedKernels,
    ) -> None:
        self._weight = weight
        self.bias = None if bias is None else bias.float()
        self._bias = bias
        self._activation: Activation | None = activation
        self._kernels = kernels

    def product(self, x: Tensor) -> Tensor:
        """x @ W.T alone."""
        if isinstance(self._weight, Tensor):
            return product(x, self._weight)
        return self._weight(x)

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        if self._activation is not None and residual is None:
            return self._kernels.bias_activation(self.product(x), self.bias, self._activation)
        if not isinstance(self._weight, Tensor):
            out = self._weight(x) if self._bias is None else self._weight(x) + self._bias
            return out if residual is None else out + residual
        if residual is None:
            return product(x, self._weight, self._bias)
        base = residual if self._bias is None else residual + self._bias
        return torch.addmm(base, x, self._weight.t())


class CudaOps:
    """One card's way to hold weights and to compute.

    fp8: multiply in float8 where a matrix has fitting sides; heads never do
    """

    def __init__(
        self, device: torch.device, dtype: torch.dtype, kernels: FusedKernels, *, fp8: bool = False
    ) -> None:
        self.device, self.dtype, self.kernels, self.fp8 = device, dtype, kernels, fp8
        self.fp8_layers = 0

    def exact(self) -> CudaOps:
        """The same card without float8."""
        return CudaOps(self.device, self.dtype, self.kernels)

    def table(self, raw: RawTensor) -> Tensor:
        rows = wrap(raw).to(self.device)
        # A model without token types has one row; the second half of a pair asks for another.
        return rows.repeat(2, 1) if rows.shape[0] == 1 else rows

    def tensor(self, raw: RawTensor) -> Tensor:
        return wrap(raw).to(self.device, self.dtype)

    def linear(
        self,
        weight: RawTensor | Tensor,
        bias: RawTensor | Tensor | None,
        activation: Activation | None = None,
    ) -> Linear:
        shift = None if bias is None else self._ready(bias)
        return CudaLinear(self._packed(self._ready(weight)), shift, activation, self.kernels)

    def float_linear(
        self, weight: RawTensor, bias: RawTensor | None, activation: Activation | None = None
    ) -> Linear:
        shift = None if bias is None else self._float(bias)
        return PlainLinear(self._float(weight), shift, activation)

    def gated_linear(
        self,
        gate: RawTensor,
        up: RawTensor,
        activation: Activation,
        biases: tuple[RawTensor, RawTensor] | None = None,
    ) -> GatedLinear:
        both = torch.cat((self._ready(gate), self._ready(up)))
        shift = None if biases is None else torch.cat([self._ready(b) for b in biases])
        joined = CudaLinear(self._packed(both), shift, None, self.kernels)
        return lambda x: self.kernels.gated(joined(x), activation)

    def layer_norm(self, weight: RawTensor, bias: RawTensor | None, eps: float) -> Norm:
        return Norm(self._float(weight), None if bias is None else self._float(bias), eps)

    def rms_norm(self, weight: RawTensor, eps: float, *, plus_one: bool = False) -> Norm:
        scale = self._float(weight)
        return Norm(scale + 1 if plus_one else scale, None, eps, "rms")

    def norm(self, norm: Norm, x: Tensor) -> Tensor:
        return self.kernels.norm(x, norm)

    def rotate(self, x: Tensor, rotation: Rotation, norm: Norm | None = None) -> Tensor:
        if norm is not None and norm.kind != "rms":
            x, norm = self.norm(norm, x), None
        return self.kernels.norm_rope(x, rotation, norm)

    def linear_add_norm(
        self, linear: Linear, x: Tensor, residual: Tensor, norm: Norm
    ) -> tuple[Tensor, Tensor]:
        parts = cast(_HasParts, linear)
        return self.kernels.add_norm(parts.product(x), parts.bias, residual, norm)

    def embed_norm(
        self,
        words: tuple[Tensor, Tensor],
        positions: tuple[Tensor, Tensor] | None,
        types: tuple[Tensor, Tensor] | None,
        norm: Norm,
    ) -> Tensor:
        return self.kernels.embed_norm(words, positions, types, norm, self.dtype)

    def _ready(self, weight: RawTensor | Tensor) -> Tensor:
        tensor = wrap(weight) if isinstance(weight, RawTensor) else weight
        return tensor.to(self.device, self.dtype).contiguous()

    def _float(self, raw: RawTensor) -> Tensor:
        return wrap(raw).to(self.device).float()

    def _packed(self, weight: Tensor) -> Product | Tensor:
        if not self.fp8 or not Fp8Weight.fits(weight):
            return weight
        self.fp8_layers += 1
        return Fp8Weight(weight, self.dtype)
