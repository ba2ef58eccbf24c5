"""torch's own ragged attention: FlashAttention-2 kernels inside every CUDA build since 2.11.

No plan and no synchronisation: lengths are read on the device, so a captured call stays right
for any lengths with the same padded count and the same number of slots.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch import Tensor

from hedgerow_engine.attention.base import AttentionSpec
from hedgerow_engine.attention.lengths import Lengths


def window_of(spec: AttentionSpec) -> tuple[int, int]:
    """(left, right) as torch counts it: -1 sees everything, (-1, 0) is plain causal."""
    left = -1 if spec.window is None else spec.window
    return left, 0 if spec.causal else left


def keywords(function: Callable[..., Any], spec: AttentionSpec) -> dict[str, Any]:
    """Arguments of `varlen_attn` for a layer, as far as this torch has them.

    torch 2.11 has no `enable_gqa` (its kernel takes grouped heads without being told). Without
    `num_splits=1` the kernel may cut the keys by the longest sequence of the bucket, and a row
    would depend on the batch around it.
    """
    known = inspect.signature(function).parameters
    wanted: dict[str, Any] = {"scale": spec.scale, "window_size": window_of(spec)}
    if "num_splits" in known:
        wanted["num_splits"] = 1
    if spec.num_kv_heads != spec.num_heads and "enable_gqa" in known:
        wanted["enable_gqa"] = True
    return wanted


class VarlenAttention:
    """One layer kind over one graph key."""

    def __init__(self, spec: AttentionSpec, lengths: Lengths) -> None:
        from torch.nn.attention.varlen import varlen_attn

        self._function: Callable[..., Any] = varlen_attn
        self._lengths = lengths
        self._keywords = keywords(varlen_attn, spec)

    def plan(self) -> None:
        """Nothing: the kernel reads the lengths itself."""

    def run(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """-> [tokens, num_heads, head_dim]."""
        cu, longest = self._lengths.cu_seqlens, self._lengths.longest
        return self._function(q, k, v, cu, cu, longest, longest, **self._keywords)
