"""A model's tensors in the form the packer wants, whatever their checkpoint called them.

Families (`families/`) fill these in; `model` packs them, a layer at a time, so that only one
layer exists twice in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from hedgerow_engine.native.geometry import Geometry
from hedgerow_engine.weightfile import RawTensor

Floats = npt.NDArray[np.float32]

EVERYWHERE = 1 << 30


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary positions. theta: base of the angles; kind "default", "linear" or "llama3"
    stretches them; low, high, original: llama3's frequency band and the length the model was
    first trained on."""

    theta: float
    kind: Literal["default", "linear", "llama3"] = "default"
    factor: float = 1.0
    low: float = 1.0
    high: float = 4.0
    original: int = 8192

    def table(self, head_dim: int, positions: int) -> Floats:
        """[positions][cos, sin][head_dim / 2]: place p turns pair i by p * rate i.

        Angles are float32 products, as models were trained with them.
        """
        places = np.arange(positions, dtype=np.float32)
        angles = places[:, None] * self._rates(head_dim)
        return np.stack([np.cos(angles), np.sin(angles)], axis=1)

    def _rates(self, head_dim: int) -> Floats:
        """float32 [head_dim / 2]: radians per place."""
        exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
        rates = (np.float32(1) / np.float32(self.theta) ** exponents).astype(np.float32)
        if self.kind == "linear":
            return rates / np.float32(self.factor)
        if self.kind == "llama3":
            # Slow angles are stretched, fast ones kept, those between are blended.
            turns = self.original * rates / np.float32(2 * np.pi)
            blend = np.clip((turns - self.low) / (self.high - self.low), 0, 1)
            return (rates * blend + rates / self.factor * (1 - blend)).astype(np.float32)
        return rates


@dataclass(frozen=True, slots=True)
class Affine:
    """A matrix [n, k] as it lies in its file, and its bias [n]."""

    weight: RawTensor
    bias: Floats | None = None


@dataclass(frozen=True, slots=True)
class Norm:
    """A norm's weight [n] and bias [n]."""

    weight: Floats
    bias: Floats | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTensors:
    """One layer. qkv: queries, keys, values below each other; the softmax scale is not in it.

    gate: None unless the MLP is gated
    attention_norm: None where the layer has none
    after_attention_norm, after_mlp_norm: of a sandwich
    rope: how queries and keys turn with their place
    back, ahead: how far a row sees
    bias: [heads, 2 * n - 1], added to scores: column n - 1 + key - row
    """

    qkv: Affine
    o: Affine
    gate: Affine | None
    up: Affine
    down: Affine
    attention_norm: Norm | None
    mlp_norm: Norm
    after_attention_norm: Floats | None = None
    after_mlp_norm: Floats | None = None
    q_norm: Floats | None = None
    k_norm: Floats | None = None
    rope: Rope | None = None
    back: int = EVERYWHERE
    ahead: int = EVERYWHERE
    bias: Floats | None = None

    @property
    def kind(self) -> tuple[object, ...]:
        """What a program does otherwise than in another layer: which parts there are, in which
        dtype the file has them, how places turn and how far a row sees."""
        parts = (self.gate, self.attention_norm, self.after_attention_norm, self.after_mlp_norm)
        matrices = (self.qkv, self.o, self.up, self.down)
        return (
            tuple(part is None for part in (*parts, self.q_norm, self.k_norm, self.bias)),
            tuple(matrix.weight.dtype for matrix in matrices),
            (self.rope, self.back, self.ahead),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTensors:
    """A whole model. `layer(i)` reads one layer; `tail`: one per step of geometry.tail,
    None where it has no weights.

    word: [vocab, hidden] as it lies in the file
    scale: what scores are multiplied with; None = 1 / sqrt(head_dim)
    table: [geometry.embed.table_rows, hidden], see `embed`; None = no rows
    """

    geometry: Geometry
    num_layers: int
    word: RawTensor
    table: Floats | None
    embed_norm: Norm | None
    layer: Callable[[int], LayerTensors]
    final_norm: Norm | None = None
    scale: float | None = None
    tail: tuple[Affine | Norm | None, ...] = ()
