"""Every fused kernel on the card against its plain torch twin, at the sizes of real models."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hedgerow_engine.device.cuda.device import fused_kernels
from hedgerow_engine.device.cuda.driver import CudaRuntime
from hedgerow_engine.device.cuda.fp8 import Fp8Weight
from hedgerow_engine.layers.kernels.base import FusedKernels
from hedgerow_engine.layers.kernels.twins import TorchKernels
from hedgerow_engine.layers.ops import Norm
from hedgerow_engine.layers.rotary import RopeParams, Rotary

TWIN = TorchKernels()
both = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
widths = pytest.mark.parametrize("width", [384, 768, 1000, 1024])


@pytest.fixture(scope="module")
def ours(runtime: CudaRuntime) -> FusedKernels:
    log: list[str] = []
    kernels = fused_kernels(runtime.device, log.append)
    assert kernels.name != "torch", log
    return kernels


def random(*shape: int, seed: int = 0) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).cuda()


def same(got: torch.Tensor, want: torch.Tensor) -> None:
    close = 1e-4 if got.dtype == torch.float32 else 0.03
    assert got.dtype == want.dtype
    assert torch.allclose(got.float(), want.float(), atol=close, rtol=close)


@both
@widths
@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_add_norm(ours: FusedKernels, width: int, dtype: torch.dtype, kind: Any) -> None:
    x, residual = random(513, width).to(dtype), random(513, width, seed=1).to(dtype)
    weight = random(width, seed=2).bfloat16().float()
    norm = Norm(weight, random(width, seed=3) if kind == "layer" else None, 1e-6, kind)
    for bias in (None, random(width, seed=4)):
        want = TWIN.add_norm(x, bias, residual, norm)
        for a, b in zip(ours.add_norm(x.clone(), bias, residual.clone(), norm), want, strict=True):
            same(a, b)
    same(ours.norm(x, norm), TWIN.norm(x, norm))


@both
@widths
@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "silu"])
def test_activations(ours: FusedKernels, width: int, dtype: torch.dtype, activation: Any) -> None:
    x = random(257, width).to(dtype)
    bias = random(width, seed=2)
    same(ours.bias_activation(x, bias, activation), TWIN.bias_activation(x, bias, activation))
    wide = random(257, 2 * width, seed=3).to(dtype)
    same(ours.gated(wide, activation), TWIN.gated(wide, activation))


@both
@pytest.mark.parametrize(("heads", "dim"), [(16, 128), (8, 128), (12, 64), (3, 256)])
def test_norm_rope(ours: FusedKernels, heads: int, dim: int, dtype: torch.dtype) -> None:
    with torch.device("cuda"):
        rotary = Rotary(RopeParams(1e6), dim, 4096)
    rotation = rotary.at(torch.arange(300, dtype=torch.int32, device="cuda") * 13)
    x = random(300, heads + 4, dim).to(dtype)[:, 2 : heads + 2]
    for norm in (None, Norm(random(dim, seed=1), None, 1e-6, "rms")):
        same(ours.norm_rope(x, rotation, norm), TWIN.norm_rope(x, rotation, norm))


@both
@widths
def test_embed_norm(ours: FusedKernels, width: int, dtype: torch.dtype) -> None:
    ids = (torch.arange(300, device="cuda") * 7 % 500).int()
    words = (random(500, width).to(dtype), ids)
    places = (random(512, width, seed=1).to(dtype), torch.arange(300, device="cuda").int())
    types = (random(2, width, seed=2).to(dtype), ids % 2)
    norm = Norm(random(width, seed=3), random(width, seed=4), 1e-12)
    got = ours.embed_norm(words, places, types, norm, dtype)
    same(got, TWIN.embed_norm(words, places, types, norm, dtype))


@both
@widths
@pytest.mark.parametrize("mode", ["mean", "max", "cls", "lasttoken", "weightedmean"])
def test_pool(ours: FusedKernels, width: int, dtype: torch.dtype, mode: Any) -> None:
    x = random(1100, width).to(dtype)
    starts = torch.tensor([0, 1, 40, 552, 1100], dtype=torch.int32, device="cuda")
    ends = torch.tensor([1, 40, 552, 1100, 1100], dtype=torch.int32, device="cuda")
    got, want = ours.pool(x, starts, ends, mode), TWIN.pool(x, starts, ends, mode)
    same(got.pooled, want.pooled)
    same(got.unit, want.unit)
    assert (got.int8.int() - want.int8.int()).abs().max() <= 1
    assert (got.bits == want.bits).float().mean() > 0.999
    assert all(not t[4].any() for t in got)


@both
@pytest.mark.parametrize("width", [384, 30522])
@pytest.mark.parametrize("mode", ["mean", "max", "cls", "lasttoken", "weightedmean"])
def test_reduce(ours: FusedKernels, width: int, dtype: torch.dtype, mode: Any) -> None:
    x = random(700, width).to(dtype)
    starts = torch.tensor([0, 1, 40, 700], dtype=torch.int32, device="cuda")
    ends = torch.tensor([1, 40, 700, 700], dtype=torch.int32, device="cuda")
    got = ours.reduce(x, starts, ends, mode)
    same(got, TWIN.reduce(x, starts, ends, mode))
    assert not got[3].any()


def test_float8_is_close_to_bfloat16() -> None:
    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("this card multiplies no float8 with a scale for each row")
    weight, x = random(1024, 768).bfloat16(), random(33, 768, seed=1).bfloat16()
    got = Fp8Weight(weight, torch.bfloat16)(x).float()
    exact = x.float() @ weight.float().t()
    assert float(torch.nn.functional.cosine_similarity(got, exact, dim=1).min()) > 0.998
