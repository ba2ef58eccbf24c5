"""Scores by distance: MPNet's learned buckets and DeBERTa's disentangled positions."""

from __future__ import annotations

import math

import torch
from torch import Tensor


class BucketBias:
    """MPNet: one number per head and bucket of signed distance, the same in every layer.

    table: float32 [num_buckets, num_heads]
    """

    def __init__(self, table: Tensor) -> None:
        self._table = table
        self._square = torch.zeros(table.shape[1], 0, 0)

    def __call__(self, q: Tensor, k: Tensor) -> Tensor:
        length = q.shape[2]
        if self._square.shape[1] < length:
            # Distance decides, so a longer square holds all shorter ones.
            index = _buckets(length, self._table.shape[0]).to(self._table.device)
            self._square = self._table[index].permute(2, 0, 1)
        return self._square[None, :, :length, :length]


def _buckets(length: int, count: int, furthest: int = 128) -> Tensor:
    """int64 [length, length]: half of the buckets for keys behind, half for keys ahead; near
    ones exact, far ones logarithmic up to `furthest`."""
    away = torch.arange(length)[:, None] - torch.arange(length)[None, :]
    half = count // 2
    exact = half // 2
    distance = away.abs()
    far = torch.log(distance.float().clamp_min(1) / exact) / math.log(furthest / exact)
    far = (exact + (far * (half - exact)).long()).clamp_max(half - 1)
    return torch.where(distance < exact, distance, far) + (away < 0).long() * half


class DisentangledBias:
    """DeBERTa-v2: content to position and position to content, by logarithmic distance.

    keys, queries: [num_heads, 2 * span, head_dim], the projected position table of one layer;
    None where `pos_att_type` leaves that half out. Both are scaled like the scores.
    """

    def __init__(
        self, keys: Tensor | None, queries: Tensor | None, span: int, buckets: int, furthest: int
    ) -> None:
        self._keys, self._queries = keys, queries
        self._span, self._buckets, self._furthest = span, buckets, furthest
        self._distance = torch.zeros(0, 0, dtype=torch.int64)

    def __call__(self, q: Tensor, k: Tensor) -> Tensor:
        n, heads, length, _ = q.shape
        distance = self._distances(length).to(q.device)
        total = torch.zeros(n, heads, length, length, device=q.device)
        if self._keys is not None:
            at = (distance + self._span).clamp(0, 2 * self._span - 1).expand(n, heads, -1, -1)
            total += torch.matmul(q, self._keys.transpose(1, 2)).gather(-1, at)
        if self._queries is not None:
            at = (self._span - distance).clamp(0, 2 * self._span - 1).expand(n, heads, -1, -1)
            total += torch.matmul(k, self._queries.transpose(1, 2)).gather(-1, at).transpose(2, 3)
        return total

    def _distances(self, length: int) -> Tensor:
        """int64 [length, length]: query minus key, logarithmic beyond half of the buckets."""
        if self._distance.shape[0] < length:
            away = torch.arange(length)[:, None] - torch.arange(length)[None, :]
            if self._buckets > 0:
                away = _log_distance(away, self._buckets // 2, self._furthest)
            self._distance = away
        return self._distance[:length, :length]


def _log_distance(away: Tensor, half: int, furthest: int) -> Tensor:
    size = away.abs().clamp_min(half - 1)
    stretch = torch.log(size / half) / math.log((furthest - 1) / half) * (half - 1)
    far = torch.ceil(stretch) + half
    return torch.where(size <= half, away, (far * away.sign()).long())
