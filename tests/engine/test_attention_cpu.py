"""CPU attention against its definition: short, blocked, causal, windowed, grouped."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from hedgerow_engine.attention.base import AttentionSpec
from hedgerow_engine.attention.cpu import CpuAttention
from hedgerow_engine.staging import lay_out
from hedgerow_shared.ragged import RaggedBatch


def by_definition(q, k, v, spec: AttentionSpec, lengths: list[int]) -> torch.Tensor:
    """Softmax of masked scores, one sequence and head at a time, in float64."""
    out, start = [], 0
    share = spec.num_heads // spec.num_kv_heads
    for length in lengths:
        rows = slice(start, start + length)
        away = torch.arange(length)[:, None] - torch.arange(length)[None, :]
        seen = torch.ones(length, length, dtype=torch.bool)
        if spec.causal:
            seen &= away >= 0
        if spec.window is not None:
            seen &= away.abs() <= spec.window
        heads = []
        for head in range(spec.num_heads):
            scores = q[rows, head].double() @ k[rows, head // share].double().T * spec.scale
            weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
            heads.append(weights @ v[rows, head // share].double())
        out.append(torch.cat(heads, 1))
        start += length
    return torch.cat(out)


FORMS = list(itertools.product((False, True), (None, 5, 70), (4, 2)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize(("causal", "window", "kv_heads"), FORMS, ids=str)
@pytest.mark.parametrize("score_bytes", [4 << 20, 20_000], ids=["one block", "many blocks"])
def test_attention_is_its_definition(
    causal: bool, window: int | None, kv_heads: int, score_bytes: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    lengths = [1, 7, 7, 60, 60, 60, 150]
    tokens = sum(lengths)
    spec = AttentionSpec(4, kv_heads, 16, 0.3, causal, window)
    q = torch.randn(tokens + 5, 4, 16).to(dtype)
    k, v = (torch.randn(tokens + 5, kv_heads, 16).to(dtype) for _ in range(2))
    batch = RaggedBatch.of([np.zeros(n, np.int32) for n in lengths])
    backend = CpuAttention(score_bytes=score_bytes)
    backend.plan(lay_out(batch, include_prompt=True))
    out = backend.run(q, k, v, spec, None)
    want = by_definition(q, k, v, spec, lengths)
    assert (out[:tokens] - want).abs().max() < (1e-5 if dtype == torch.float32 else 3e-2)
    assert torch.all(out[tokens:] == 0)


def test_nan_stays_inside_its_sequence() -> None:
    q, k, v = (torch.randn(120, 2, 32).bfloat16() for _ in range(3))
    v[60] = float("nan")
    backend = CpuAttention()
    batch = RaggedBatch.of([np.zeros(60, np.int32), np.zeros(60, np.int32)])
    backend.plan(lay_out(batch, include_prompt=True))
    out = backend.run(q, k, v, AttentionSpec(2, 2, 32, 0.2), None)
    assert out[:60].isfinite().all() and not out[60:].isfinite().any()
