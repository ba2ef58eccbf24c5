"""A model's tensors in the form the packer wants, whatever their checkpoint called them.

Families (`families/`) fill these in; `model` packs them, a layer at a time, so that only one
layer exists twice in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from hedgerow_engine.native.geometry import Geometry
from hedgerow_engine.weightfile import RawTensor

Floats = npt.NDArray[np.float32]

EVERYWHERE = 1 << 30


@dataclass(frozen=True, slots=True)
class Affine:
    """A matrix [n, k] and its bias [n], or a norm's weight [n] and bias [n]."""

    weight: Floats
    bias: Floats | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTensors:
    """One layer. qkv: queries, keys, values below each other; the softmax scale is not in it.

    gate: None unless the MLP is gated
    attention_norm: None where the layer has none
    rope_theta: base of the rotation, see `rope_table`
    back, ahead: how far a row sees
    """

    qkv: Affine
    o: Affine
    gate: Affine | None
    up: Affine
    down: Affine
    attention_norm: Affine | None
    mlp_norm: Affine
    q_norm: Floats | None = None
    k_norm: Floats | None = None
    rope_theta: float = 0.0
    back: int = EVERYWHERE
    ahead: int = EVERYWHERE


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTensors:
    """A whole model. `layer(i)` reads one layer; `tail`: one per step of geometry.tail.

    word: [vocab, hidden] as it lies in the file
    position: [positions] or, with token types, [2 * positions] rows of `hidden`; None = none
    """

    geometry: Geometry
    num_layers: int
    word: RawTensor
    position: Floats | None
    embed_norm: Affine | None
    layer: Callable[[int], LayerTensors]
    final_norm: Affine | None = None
    tail: tuple[Affine, ...] = field(default=())


def rope_table(theta: float, head_dim: int, positions: int) -> Floats:
    """[positions][cos, sin][head_dim / 2]: place p turns pair i by p * theta ** (-2 i / dim)."""
    frequencies = theta ** (-np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    angles = np.arange(positions, dtype=np.float64)[:, None] * frequencies
    return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
