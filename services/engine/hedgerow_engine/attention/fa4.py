"""FlashAttention-4, called directly: the route through torch unpacks two of its five results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from hedgerow_engine.attention.base import AttentionSpec
from hedgerow_engine.attention.lengths import Lengths


def keywords(spec: AttentionSpec, lengths: Lengths) -> dict[str, Any]:
    """Arguments of `flash_attn_varlen_func` beside q, k and v.

    Bounds are plain ints that cover every replay. `num_splits` stays 1: a split grid would
    depend on lengths, and results on the bucket.
    """
    window = (None, None) if spec.window is None else (spec.window, spec.window)
    return {
        "cu_seqlens_q": lengths.cu_seqlens,
        "cu_seqlens_k": lengths.cu_seqlens,
        "max_seqlen_q": lengths.longest,
        "max_seqlen_k": lengths.longest,
        "softmax_scale": spec.scale,
        "causal": spec.causal and spec.window is None,
        "window_size": (spec.window, 0) if spec.causal and spec.window is not None else window,
        "num_splits": 1,
    }


class Fa4Attention:
    """One layer kind over one graph key. Compiles once per head_dim, grouping and mask."""

    def __init__(self, spec: AttentionSpec, lengths: Lengths) -> None:
        from flash_attn.cute import flash_attn_varlen_func

        self._function: Callable[..., Any] = flash_attn_varlen_func
        self._keywords = keywords(spec, lengths)

    def plan(self) -> None:
        """Nothing: the grid follows from shapes, and lengths are read on the device."""

    def run(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """-> [tokens, num_heads, head_dim]."""
        answer = self._function(q, k, v, **self._keywords)
        return answer[0] if isinstance(answer, tuple) else answer
