"""FlashInfer's ragged prefill in graph mode, planned anew before every pass.

Planning is host work: it writes tables into pinned memory and queues one copy of them. Three
rules follow (docs/decisions/0102): a wrapper is first planned at the padded size; each planned
kernel of a pass owns a stretch of the device's table buffer, because the pass plans all of them
before any runs; and the pinned side belongs to the staging slot of the pass, or the plan of the
next pass would overwrite tables that are still waiting to be copied.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from hedgerow_engine.attention.base import AttentionSpec
from hedgerow_engine.attention.lengths import Lengths

TABLE_BYTES = 1 << 20
# Split-KV is off, so this scratch is only named, never used.
SCRATCH_BYTES = 1 << 20
Kernel = Literal["fa2", "fa3"]


def use_prebuilt_norms() -> None:
    """FlashInfer's CUDA norms instead of those that need the CuTe compiler. Before its import."""
    os.environ.setdefault("FLASHINFER_USE_CUDA_NORM", "1")


def plan_arguments(
    spec: AttentionSpec, indptr: Tensor, dtype: torch.dtype
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments of `plan`. `indptr` must be int32 on the host: a device tensor would be read
    back, which waits for all that is queued. The dtype must be said: its default is float16."""
    positional = (indptr, indptr, spec.num_heads, spec.num_kv_heads, spec.head_dim)
    return positional, {
        "causal": spec.causal,
        "window_left": -1 if spec.window is None else spec.window,
        "sm_scale": spec.scale,
        "q_data_type": dtype,
        "kv_data_type": dtype,
        "non_blocking": True,
        "disable_split_kv": True,
    }


class FlashInferAttention:
    """One layer kind over one graph key.

    place: which of the plan tables is this kernel's. All keys of a stream share a table; the
        kernels of one pass do not
    """

    def __init__(
        self,
        spec: AttentionSpec,
        lengths: Lengths,
        *,
        kernel: Kernel,
        place: int,
        scratch: Tensor,
        dtype: torch.dtype,
        wrapper: Callable[..., Any] | None = None,
    ) -> None:
        self._spec, self._lengths, self._place, self._dtype = spec, lengths, place, dtype
        self._wrapper: Any = (wrapper or _wrapper())(
            scratch,
            "NHD",
            use_cuda_graph=True,
            qo_indptr_buf=lengths.cu_seqlens,
            kv_indptr_buf=lengths.cu_seqlens,
            backend=kernel,
        )
        # A wrapper brings 8 MiB of tables of its own; hundreds of graphs must not.
        self._wrapper._int_workspace_buffer = lengths.device_tables[place]
        self.plan()

    def plan(self) -> None:
        """Write this pass's tables into its staging slot and queue their copy."""
        self._wrapper._pin_memory_int_workspace_buffer = self._lengths.tables[self._place]
        positional, named = plan_arguments(self._spec, self._lengths.host_cu_seqlens, self._dtype)
        self._wrapper.plan(*positional, **named)

    def run(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """-> [tokens, num_heads, head_dim]."""
        return self._wrapper.run(q, k, v)


def _wrapper() -> Callable[..., Any]:
    use_prebuilt_norms()
    from flashinfer import BatchPrefillWithRaggedKVCacheWrapper

    return BatchPrefillWithRaggedKVCacheWrapper
