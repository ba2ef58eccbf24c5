"""What a device must be able to compute: the vocabulary all models are written in.

Fused forms are named here because each device fuses elsewhere: a CPU adds the residual inside
the linear, a GPU inside the norm. Tensors are [num_tokens, width]; nothing is padded per
sequence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.nn.functional import gelu, silu

from hedgerow_engine.layers.rotary import Rotation
from hedgerow_engine.weightfile import RawTensor

Activation = Literal["gelu", "gelu_tanh", "silu", "relu", "tanh", "sigmoid"]


def activate(x: Tensor, activation: Activation) -> Tensor:
    """An activation on its own, where none could be fused into the linear before it."""
    if activation == "gelu":
        return gelu(x)
    if activation == "gelu_tanh":
        return gelu(x, approximate="tanh")
    if activation == "silu":
        return silu(x)
    return {"relu": torch.relu, "tanh": torch.tanh, "sigmoid": torch.sigmoid}[activation](x)


@dataclass(frozen=True, slots=True)
class Norm:
    """A norm over the last axis. weight, bias: float32 [width]; kind "rms" has no mean."""

    weight: Tensor
    bias: Tensor | None
    eps: float
    kind: Literal["layer", "rms"] = "layer"


class Linear(Protocol):
    """x @ W.T + bias, then the activation it was built with, or plus `residual`."""

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor: ...


class GatedLinear(Protocol):
    """activation(x @ gate.T) * (x @ up.T): [num_tokens, in] -> [num_tokens, out]."""

    def __call__(self, x: Tensor) -> Tensor: ...


class Ops(Protocol):
    """One device's way to hold weights and to compute."""

    @property
    def dtype(self) -> torch.dtype:
        """Of the products and of the hidden states between layers."""
        ...

    def table(self, raw: RawTensor) -> Tensor:
        """Embedding rows, in the dtype of the file."""
        ...

    def tensor(self, raw: RawTensor) -> Tensor:
        """A weight on the device in the dtype of the products (tables, heads)."""
        ...

    def linear(
        self,
        weight: RawTensor | Tensor,
        bias: RawTensor | Tensor | None,
        activation: Activation | None = None,
    ) -> Linear:
        """weight [out, in]; packed into whatever form the device multiplies fastest."""
        ...

    def float_linear(
        self, weight: RawTensor, bias: RawTensor | None, activation: Activation | None = None
    ) -> Linear:
        """For heads, which see one row per sequence: float32 in, float32 multiplied and out."""
        ...

    def gated_linear(
        self,
        gate: RawTensor,
        up: RawTensor,
        activation: Activation,
        biases: tuple[RawTensor, RawTensor] | None = None,
    ) -> GatedLinear: ...

    def layer_norm(self, weight: RawTensor, bias: RawTensor | None, eps: float) -> Norm: ...

    def rms_norm(self, weight: RawTensor, eps: float, *, plus_one: bool = False) -> Norm:
        """`plus_one`: the file stores weight - 1 (Gemma)."""
        ...

    def norm(self, norm: Norm, x: Tensor) -> Tensor: ...

    def rotate(self, x: Tensor, rotation: Rotation, norm: Norm | None = None) -> Tensor:
        """x [num_tokens, heads, head_dim], each head first normed where the model does so."""
        ...

    def linear_add_norm(
        self, linear: Linear, x: Tensor, residual: Tensor, norm: Norm
    ) -> tuple[Tensor, Tensor]:
        """(norm(s), s) with s = linear(x) + residual."""
        ...

    def embed_norm(
        self,
        words: tuple[Tensor, Tensor],
        positions: tuple[Tensor, Tensor] | None,
        types: tuple[Tensor, Tensor] | None,
        norm: Norm,
    ) -> Tensor:
        """Rows of up to three tables summed in float32, normed, in the dtype of the products.

        Each pair is a table [rows, width] and int32 [num_tokens].
        """
        ...


@runtime_checkable
class Narrowing(Protocol):
    """A device that may multiply in fewer bits than its dtype has."""

    def exact(self) -> Ops:
        """The same device, every product in its full dtype: for heads."""
        ...


def for_heads(ops: Ops) -> Ops:
    """`ops` without products in fewer bits than its dtype."""
    return ops.exact() if isinstance(ops, Narrowing) else ops
