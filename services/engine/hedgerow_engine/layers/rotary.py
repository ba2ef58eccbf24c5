"""Rotary positions: which angles a model uses, and their cosines for the tokens of a batch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class RopeParams:
    """theta: base of the angles; kind "default", "linear" or "llama3" stretches them.

    low, high, original: llama3's frequency band and the length the model was first trained on
    """

    theta: float
    kind: str = "default"
    factor: float = 1.0
    low: float = 1.0
    high: float = 4.0
    original: int = 8192


class Rotation(NamedTuple):
    """float32 [num_tokens, 1, head_dim] each: applied as x * cos + half_turned(x) * sin."""

    cos: Tensor
    sin: Tensor


class Rotary:
    """Tables of one set of angles; a pass looks its positions up once for all layers."""

    def __init__(self, params: RopeParams, head_dim: int, max_positions: int) -> None:
        angles = torch.arange(max_positions, dtype=torch.float32)[:, None] * _rates(
            params, head_dim
        )
        self._cos = torch.cat((angles.cos(), angles.cos()), dim=1)
        self._sin = torch.cat((angles.sin(), angles.sin()), dim=1)

    def at(self, positions: Tensor) -> Rotation:
        """positions: int32 [num_tokens]."""
        cos, sin = torch.embedding(self._cos, positions), torch.embedding(self._sin, positions)
        return Rotation(cos.unsqueeze(1), sin.unsqueeze(1))


def _rates(params: RopeParams, head_dim: int) -> Tensor:
    """float32 [head_dim / 2]: radians per position."""
    exponent = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    rates = 1.0 / params.theta**exponent
    if params.kind == "linear":
        return rates / params.factor
    if params.kind == "llama3":
        return _llama3(rates, params)
    return rates


def _llama3(rates: Tensor, params: RopeParams) -> Tensor:
    """Slow angles are stretched, fast ones kept, those between are blended."""
    waves = 2 * math.pi / rates
    blend = (params.original / waves - params.low) / (params.high - params.low)
    blend = blend.clamp(0, 1)
    return rates * blend + rates / params.factor * (1 - blend)
