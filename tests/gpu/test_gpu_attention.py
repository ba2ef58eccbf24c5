"""Every installed attention backend on the card against SDPA, sequence by sequence."""

from __future__ import annotations

import pytest
import torch

from hedgerow_engine.attention.base import AttentionSpec
from hedgerow_engine.attention.choose import BACKENDS, BackendName, Have, Need, choose
from hedgerow_engine.attention.flashinfer import TABLE_BYTES
from hedgerow_engine.attention.lengths import Lengths
from hedgerow_engine.attention.sdpa import SdpaAttention
from hedgerow_engine.device.cuda.attention import MAX_PLANNED, Kernels, KeyAttention
from hedgerow_engine.device.cuda.device import installed_backends
from hedgerow_engine.device.cuda.driver import CudaRuntime

SPECS = {
    "minilm": AttentionSpec(12, 12, 32, 32**-0.5),
    "bert": AttentionSpec(12, 12, 64, 0.125),
    "qwen3": AttentionSpec(16, 8, 128, 128**-0.5, causal=True),
    "qwen3 both ways": AttentionSpec(16, 8, 128, 128**-0.5),
    "mistral": AttentionSpec(16, 8, 128, 128**-0.5, causal=True, window=64),
    "modernbert": AttentionSpec(12, 12, 64, 0.125, window=64),
    "gemma": AttentionSpec(3, 1, 256, 1 / 16, window=128),
}
BATCHES = {
    "one token": [1],
    "one long": [1500],
    "ragged": [5, 1, 64, 300, 17, 129, 2],
    "many": [7] * 60,
}
BUCKET, SLOTS = 2048, 64


def lengths_of(runtime: CudaRuntime, seqlens: list[int]) -> Lengths:
    """The batch, a dummy that owns the padding, and empty slots: as a graph sees it."""
    bounds = torch.tensor([0, *seqlens]).cumsum(0).tolist()
    bounds += [BUCKET] * (SLOTS + 1 - len(bounds))
    host = runtime.pinned((SLOTS + 1,), torch.int32)
    host.copy_(torch.tensor(bounds, dtype=torch.int32))
    cu = host.to(runtime.device)
    pinned = tuple(runtime.pinned((TABLE_BYTES,), torch.uint8) for _ in range(MAX_PLANNED))
    device = tuple(runtime.zeros((TABLE_BYTES,), torch.uint8) for _ in range(MAX_PLANNED))
    return Lengths(cu, cu[:-1], cu[1:], BUCKET, BUCKET, host, pinned, device)


def can(name: BackendName, spec: AttentionSpec, runtime: CudaRuntime) -> bool:
    what = Need(
        head_dim=spec.head_dim,
        num_heads=spec.num_heads,
        num_kv_heads=spec.num_kv_heads,
        causal=spec.causal,
        window=spec.window,
        longest=BUCKET,
        dtype="bfloat16",
    )
    only = Have(arch=runtime.arch, installed=frozenset({name, "sdpa"}))
    return choose(what, only, name).name == name


@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
@pytest.mark.parametrize("name", [n for n in BACKENDS if n != "sdpa"])
def test_a_backend_agrees_with_sdpa(
    name: BackendName, spec: AttentionSpec, batch: list[int], runtime: CudaRuntime
) -> None:
    if name not in installed_backends(lambda line: None):
        pytest.skip(f"{name} is not installed")
    if not can(name, spec, runtime):
        pytest.skip(f"{name} does not compute this on this card")
    log: list[str] = []
    kernels = Kernels(
        runtime,
        dtype=torch.bfloat16,
        installed=frozenset({name, "sdpa"}),
        wanted=name,
        log=log.append,
    )
    at = lengths_of(runtime, batch)
    generator = torch.Generator(runtime.device).manual_seed(0)
    heads = (spec.num_heads, spec.num_kv_heads, spec.num_kv_heads)
    qkv = torch.randn(
        BUCKET, sum(heads), spec.head_dim, generator=generator, device=runtime.device
    ).bfloat16()
    q, k, v = qkv.split(heads, dim=1)  # strided, as a fused projection gives them
    with torch.inference_mode():
        got = KeyAttention(kernels, at).run(q, k, v, spec, None).float()
        right = SdpaAttention(spec, at).run(q.float(), k.float(), v.float()).flatten(1)
    assert kernels.chosen[spec] == {name}, log
    assert bool(torch.isfinite(got).all())
    real = slice(0, sum(batch))
    assert torch.allclose(got[real], right[real], atol=0.03, rtol=0.03)
    cosine = torch.nn.functional.cosine_similarity(got[real], right[real], dim=1)
    assert float(cosine.min()) > 0.999
