"""The oracle: one sequence after another, exact lengths, no mask beyond the model's own.

Reads the lengths back from the device, so it cannot be captured. It serves float32 and models
that add numbers to their scores; everything else is measured against it.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from hedgerow_engine.attention.base import AttentionSpec, ScoreBias
from hedgerow_engine.attention.lengths import Lengths


class SdpaAttention:
    """One layer kind over one graph key."""

    def __init__(self, spec: AttentionSpec, lengths: Lengths) -> None:
        self._spec, self._lengths = spec, lengths

    def plan(self) -> None:
        """Nothing: it reads the lengths when it runs."""

    def run(self, q: Tensor, k: Tensor, v: Tensor, bias: ScoreBias | None = None) -> Tensor:
        """-> [tokens, num_heads, head_dim]; rows of no sequence are zero."""
        out = torch.zeros_like(q, memory_format=torch.contiguous_format)
        bounds: list[int] = self._lengths.cu_seqlens.tolist()
        for start, end in pairwise(bounds):
            if end > start:
                rows = slice(start, end)
                out[rows] = one_sequence(q[rows], k[rows], v[rows], self._spec, bias)
        return out


def one_sequence(
    q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec, bias: ScoreBias | None = None
) -> Tensor:
    """q [length, num_heads, head_dim], k and v [length, num_kv_heads, head_dim] -> like q."""
    q, k, v = (t.transpose(0, 1)[None] for t in (q, k, v))
    length = q.shape[2]
    mask = None if bias is None else bias(q, k).to(q.dtype)
    windowed = spec.window is not None and spec.window < length - 1
    if windowed or (spec.causal and mask is not None):
        seen = _seen(spec, length, q.device)
        mask = seen if mask is None else mask.masked_fill(~seen, float("-inf"))
    if mask is not None and mask.dtype != torch.bool:
        mask = mask.expand(1, spec.num_heads, length, length)
    answer = scaled_dot_product_attention(
        q,
        k,
        v,
        mask,
        is_causal=spec.causal and mask is None,
        scale=spec.scale,
        enable_gqa=spec.num_kv_heads != spec.num_heads,
    )
    return answer[0].transpose(0, 1)


def _seen(spec: AttentionSpec, length: int, device: torch.device) -> Tensor:
    """bool [length, length]: which key each query sees."""
    at = torch.arange(length, device=device)
    away = at[:, None] - at[None, :]
    reach = length if spec.window is None else spec.window
    return (away <= reach) & (away >= (0 if spec.causal else -reach))
