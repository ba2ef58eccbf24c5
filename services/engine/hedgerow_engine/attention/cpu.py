"""Attention on a CPU: equal lengths share a call, and the call depends on the length.

torch's scaled_dot_product_attention is best in float32 and for short sequences. In bfloat16
from 48 tokens up, matrix product, softmax, matrix product is 1.4 to 2.8 times faster, if the
score buffer stays small enough for the cache and is reused (docs/decisions/0030).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from hedgerow_engine.attention.base import AttentionSpec, ScoreBias
from hedgerow_engine.staging import Group, Layout

SCORE_BYTES = 4 << 20
_SDPA_BELOW = 48
_FAR = 1 << 30


class CpuAttention:
    """Satisfies `AttentionBackend`. One thread uses it."""

    def __init__(self, *, score_bytes: int = SCORE_BYTES) -> None:
        self._score_bytes = score_bytes
        self._groups: tuple[Group, ...] = ()
        self._num_tokens = 0
        self._arenas: dict[tuple[str, torch.dtype], Tensor] = {}

    def plan(self, layout: Layout) -> None:
        self._groups, self._num_tokens = layout.groups, layout.num_tokens

    def run(
        self, q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec, bias: ScoreBias | None
    ) -> Tensor:
        width = spec.num_heads * spec.head_dim
        out = self._arena("out", q.shape[0] * width, q.dtype).view(q.shape[0], width)
        # A padded tail takes no part, but a stale NaN must not travel with it.
        out[self._num_tokens :].zero_()
        for start, n, length in self._groups:
            rows = slice(start, start + n * length)
            pq, pk, pv = (t[rows].view(n, length, *t.shape[1:]).transpose(1, 2) for t in (q, k, v))
            answer = out[rows].view(n, length, spec.num_heads, spec.head_dim).transpose(1, 2)
            extra = None if bias is None else bias(pq, pk)
            if q.dtype == torch.float32 or length < _SDPA_BELOW or extra is not None:
                self._sdpa(pq, pk, pv, spec, extra, answer)
            else:
                self._blocked(pq, pk, pv, spec, answer)
        return out

    def _sdpa(
        self, q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec, bias: Tensor | None, out: Tensor
    ) -> None:
        """q, k, v, out: [num_seqs, heads, length, head_dim]."""
        length = q.shape[2]
        grouped = spec.num_kv_heads != spec.num_heads
        windowed = spec.window is not None and spec.window < length - 1
        mask = bias
        if windowed or (spec.causal and bias is not None):
            seen = _seen(spec, 0, length, 0, length)
            mask = seen if bias is None else bias.masked_fill(~seen, float("-inf"))
        if mask is not None and mask.dtype != torch.bool:
            mask = mask.to(q.dtype).expand(q.shape[0], q.shape[1], length, length)
        causal = spec.causal and mask is None
        out.copy_(
            scaled_dot_product_attention(
                q, k, v, mask, is_causal=causal, scale=spec.scale, enable_gqa=grouped
            )
        )

    def _blocked(self, q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec, out: Tensor) -> None:
        """Scores of a few heads and query rows at a time, in one reused buffer."""
        n, heads, length, dim = q.shape
        share = heads // spec.num_kv_heads
        if share > 1:
            k, v = (t.repeat_interleave(share, dim=1) for t in (k, v))
        flat = [self._contiguous(name, t) for name, t in (("q", q), ("k", k), ("v", v))]
        answer = self._arena("o", n * heads * length * dim, q.dtype).view(n * heads, length, dim)
        budget = self._score_bytes // q.element_size()
        rows = min(length, max(16, budget // length))
        if spec.window is not None:
            rows = min(rows, max(128, spec.window))
        for row in range(0, length, rows):
            end = min(row + rows, length)
            low, high = _key_range(spec, row, end, length)
            block = max(1, budget // ((end - row) * (high - low)))
            for head in range(0, n * heads, block):
                self._block(flat, answer, spec, slice(head, head + block), (row, end, low, high))
        out.copy_(answer.view(n, heads, length, dim))

    def _block(
        self,
        qkv: list[Tensor],
        out: Tensor,
        spec: AttentionSpec,
        heads: slice,
        span: tuple[int, int, int, int],
    ) -> None:
        row, end, low, high = span
        q, k, v = qkv[0][heads, row:end], qkv[1][heads, low:high], qkv[2][heads, low:high]
        count = q.shape[0]
        scores = self._arena("scores", count * (end - row) * (high - low), q.dtype)
        scores = scores.view(count, end - row, high - low)
        torch.baddbmm(scores, q, k.transpose(1, 2), beta=0, alpha=spec.scale, out=scores)
        if spec.causal or spec.window is not None:
            scores.masked_fill_(~_seen(spec, row, end, low, high), float("-inf"))
        torch.softmax(scores, -1, out=scores)
        if end - row == out.shape[1]:
            torch.bmm(scores, v, out=out[heads])
        else:
            out[heads, row:end] = torch.bmm(scores, v)

    def _contiguous(self, name: str, x: Tensor) -> Tensor:
        """[n, heads, length, dim] copied into an arena as [n * heads, length, dim]."""
        n, heads, length, dim = x.shape
        flat = self._arena(name, x.numel(), x.dtype).view(n, heads, length, dim)
        return flat.copy_(x).view(n * heads, length, dim)

    def _arena(self, name: str, size: int, dtype: torch.dtype) -> Tensor:
        arena = self._arenas.get((name, dtype))
        if arena is None or arena.shape[0] < size:
            arena = self._arenas[name, dtype] = torch.zeros(size, dtype=dtype)
        return arena[:size]


def _key_range(spec: AttentionSpec, row: int, end: int, length: int) -> tuple[int, int]:
    """Keys that any query of [row, end) may see."""
    reach = _FAR if spec.window is None else spec.window
    return max(0, row - reach), end if spec.causal else min(length, end + reach)


def _seen(spec: AttentionSpec, row: int, end: int, low: int, high: int) -> Tensor:
    """bool [end - row, high - low]: which key each query sees."""
    away = torch.arange(row, end)[:, None] - torch.arange(low, high)[None, :]
    reach = _FAR if spec.window is None else spec.window
    return (away <= reach) & (away >= (0 if spec.causal else -reach))
