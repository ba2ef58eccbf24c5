"""Layers on a CPU: oneDNN's packed operators inside torch, with plain torch behind them.

The packed operators are private names of torch, so they are tried once at start; where they
fail, `F.linear` does the same work 7 to 30 % slower (in float32 on AMD, half as fast).
"""

from __future__ import annotations

import torch
from torch import Tensor

from hedgerow_engine.layers.opaque import opaque
from hedgerow_engine.layers.ops import Activation, GatedLinear, Linear, Norm, activate
from hedgerow_engine.layers.rotary import Rotation
from hedgerow_engine.weightfile import RawTensor

_ONEDNN: dict[Activation | None, tuple[str, str]] = {  # activation -> (post-op, algorithm)
    None: ("none", ""),
    "gelu": ("gelu", "none"),
    "gelu_tanh": ("gelu", "tanh"),
    "silu": ("swish", ""),
    "relu": ("relu", ""),
    "tanh": ("tanh", ""),
    "sigmoid": ("sigmoid", ""),
}


class PackedLinear:
    """One oneDNN call: product, bias, and activation or residual."""

    def __init__(self, weight: Tensor, bias: Tensor | None, activation: Activation | None) -> None:
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight)
        self._bias = bias
        self._post, self._algorithm = _ONEDNN[activation]
        self._plain = torch.ops.mkldnn._linear_pointwise.default
        self._binary = torch.ops.mkldnn._linear_pointwise.binary

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        if residual is not None:
            return self._binary(x, residual, self._weight, self._bias, "add")
        return self._plain(x, self._weight, self._bias, self._post, [], self._algorithm)

    def times(self, x: Tensor, other: Tensor) -> Tensor:
        """(x @ W.T + bias) * other."""
        return self._binary(x, other, self._weight, self._bias, "mul")


class PlainLinear:
    """The same in operators every torch has."""

    def __init__(self, weight: Tensor, bias: Tensor | None, activation: Activation | None) -> None:
        self._weight, self._bias = weight, bias
        self._activation: Activation | None = activation

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        out = torch.nn.functional.linear(x, self._weight, self._bias)
        if residual is not None:
            return out + residual
        return out if self._activation is None else activate(out, self._activation)

    def times(self, x: Tensor, other: Tensor) -> Tensor:
        return self(x) * other


class PackedOps:
    """Satisfies `Ops` on a CPU."""

    def __init__(self, dtype: torch.dtype, *, packed: bool) -> None:
        self.dtype = dtype
        self.packed = packed
        self._linear = PackedLinear if packed else PlainLinear

    def tensor(self, raw: RawTensor) -> Tensor:
        return wrap(raw).to(self.dtype)

    def table(self, raw: RawTensor) -> Tensor:
        """Rows stay in the mapped file: no copy, and shared by all workers of a machine."""
        return wrap(raw)

    def linear(
        self,
        weight: RawTensor | Tensor,
        bias: RawTensor | Tensor | None,
        activation: Activation | None = None,
    ) -> Linear:
        return self._linear(
            self._ready(weight), bias if bias is None else self._ready(bias), activation
        )

    def float_linear(
        self, weight: RawTensor, bias: RawTensor | None, activation: Activation | None = None
    ) -> Linear:
        shift = None if bias is None else wrap(bias).float()
        return PlainLinear(wrap(weight).float(), shift, activation)

    def gated_linear(
        self,
        gate: RawTensor,
        up: RawTensor,
        activation: Activation,
        biases: tuple[RawTensor, RawTensor] | None = None,
    ) -> GatedLinear:
        first_bias, second_bias = (self._ready(b) for b in biases) if biases else (None, None)
        first = self._linear(self._ready(gate), first_bias, activation)
        second = self._linear(self._ready(up), second_bias, None)
        return lambda x: second.times(x, first(x))

    def layer_norm(self, weight: RawTensor, bias: RawTensor | None, eps: float) -> Norm:
        shift = None if bias is None else wrap(bias).float()
        return Norm(wrap(weight).float(), shift, eps)

    def rms_norm(self, weight: RawTensor, eps: float, *, plus_one: bool = False) -> Norm:
        scale = wrap(weight).float()
        return Norm(scale + 1 if plus_one else scale, None, eps, "rms")

    def norm(self, norm: Norm, x: Tensor) -> Tensor:
        if norm.kind == "layer":
            return torch.layer_norm(x, norm.weight.shape, norm.weight, norm.bias, norm.eps)
        return _rms_norm(x, norm.weight, norm.eps)

    def rotate(self, x: Tensor, rotation: Rotation, norm: Norm | None = None) -> Tensor:
        return _rotate(self.norm(norm, x) if norm else x, rotation.cos, rotation.sin)

    def linear_add_norm(
        self, linear: Linear, x: Tensor, residual: Tensor, norm: Norm
    ) -> tuple[Tensor, Tensor]:
        total = linear(x, residual)
        return self.norm(norm, total), total

    def embed_norm(
        self,
        words: tuple[Tensor, Tensor],
        positions: tuple[Tensor, Tensor] | None,
        types: tuple[Tensor, Tensor] | None,
        norm: Norm,
    ) -> Tensor:
        total = torch.embedding(*words).float()
        for pair in (positions, types):
            if pair is not None:
                table, ids = pair
                # A table of one row (a model without token types) needs no look-up.
                total = total + (torch.embedding(table, ids) if table.shape[0] > 1 else table[0])
        return self.norm(norm, total).to(self.dtype)

    def _ready(self, weight: RawTensor | Tensor) -> Tensor:
        tensor = wrap(weight) if isinstance(weight, RawTensor) else weight
        return tensor.to(self.dtype).contiguous()


@opaque
def _rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """In float32 inside, as the models were trained."""
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
    scale = (length.square_().div_(x.shape[-1]) + eps).rsqrt_()
    return (x * scale).mul_(weight).to(x.dtype)


@opaque
def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [num_tokens, heads, head_dim] turned by cos and sin [num_tokens, 1, head_dim]."""
    half = x.shape[-1] // 2
    turned = x * cos
    turned[..., :half].addcmul_(x[..., half:].float(), sin[..., :half], value=-1)
    turned[..., half:].addcmul_(x[..., :half].float(), sin[..., half:])
    return turned.to(x.dtype)


def wrap(raw: RawTensor) -> Tensor:
    """A raw view as a tensor of the file's dtype, without a copy; float64, in which nothing is
    computed here, as float32."""
    tensor = torch.from_numpy(raw.float32() if raw.dtype == "F64" else raw.data)
    return tensor.view(torch.bfloat16) if raw.dtype == "BF16" else tensor


def packed_works(dtype: torch.dtype) -> bool:
    """Try the private operators on a small product with every post-op that layers use."""
    x = torch.linspace(-1, 1, 8 * 16).view(8, 16).to(dtype)
    weight = torch.linspace(1, -1, 32 * 16).view(32, 16).to(dtype)
    bias = torch.linspace(0, 1, 32).to(dtype)
    other = torch.ones(8, 32, dtype=dtype)
    tolerance = 1e-4 if dtype == torch.float32 else 5e-2
    try:
        for activation in _ONEDNN:
            pair = [kind(weight, bias, activation)(x) for kind in (PackedLinear, PlainLinear)]
            if not torch.allclose(pair[0].float(), pair[1].float(), atol=tolerance, rtol=0.02):
                return False
        packed, plain = PackedLinear(weight, bias, None), PlainLinear(weight, bias, None)
        return torch.allclose(
            packed(x, other).float(), plain(x, other).float(), atol=tolerance, rtol=0.02
        ) and torch.allclose(
            packed.times(x, other).float(), plain.times(x, other).float(), atol=tolerance, rtol=0.02
        )
    except (RuntimeError, AttributeError, TypeError):
        return False
