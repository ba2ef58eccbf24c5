"""Every Triton kernel against its twin, in Triton's interpreter.

Not collected by name: TRITON_INTERPRET must be set before Triton is imported, so
`test_kernel_parity` runs this file in a process of its own.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hedgerow_engine.layers.kernels.fused import TritonKernels
from hedgerow_engine.layers.kernels.twins import TorchKernels
from hedgerow_engine.layers.ops import Norm
from hedgerow_engine.layers.rotary import RopeParams, Rotary

OURS, TWIN = TritonKernels(), TorchKernels()
DTYPES = [torch.float32, torch.bfloat16]
ROWS_WIDTH = [(1, 16), (3, 48), (2, 384), (5, 33), (0, 48)]
both = pytest.mark.parametrize("dtype", DTYPES, ids=str)
shapes = pytest.mark.parametrize("shape", ROWS_WIDTH, ids=str)


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def same(got: torch.Tensor, want: torch.Tensor) -> None:
    assert got.dtype == want.dtype and got.shape == want.shape
    close = 2e-5 if got.dtype == torch.float32 else 0.02
    assert torch.allclose(got.float(), want.float(), atol=close, rtol=close)


def norm_of(width: int, kind: str, *, shift: bool = True) -> Norm:
    bias = random(width, seed=8) if kind == "layer" and shift else None
    return Norm(random(width, seed=7), bias, 1e-5, kind)  # type: ignore[arg-type]


@both
@shapes
@pytest.mark.parametrize("kind", ["layer", "rms"])
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
def test_add_norm(shape: tuple[int, int], dtype: torch.dtype, kind: str, bias: bool) -> None:
    x, residual = random(*shape).to(dtype), random(*shape, seed=1).to(dtype)
    extra = random(shape[1], seed=2) if bias else None
    norm = norm_of(shape[1], kind, shift=bias)
    for got, want in zip(
        OURS.add_norm(x.clone(), extra, residual.clone(), norm),
        TWIN.add_norm(x, extra, residual, norm),
        strict=True,
    ):
        same(got, want)


@both
def test_norm_of_heads(dtype: torch.dtype) -> None:
    x = random(2, 3, 32).to(dtype)
    same(OURS.norm(x, norm_of(32, "rms")), TWIN.norm(x, norm_of(32, "rms")))


@both
@shapes
@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "silu", "relu", "tanh", "sigmoid"])
def test_bias_activation(shape: tuple[int, int], dtype: torch.dtype, activation: str) -> None:
    x = random(*shape).to(dtype)
    for bias in (None, random(shape[1], seed=2)):
        got = OURS.bias_activation(x, bias, activation)  # type: ignore[arg-type]
        same(got, TWIN.bias_activation(x, bias, activation))  # type: ignore[arg-type]


@both
@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "silu"])
@pytest.mark.parametrize("shape", [(3, 34), (1, 2048), (0, 16)], ids=str)
def test_gated(shape: tuple[int, int], dtype: torch.dtype, activation: str) -> None:
    x = (random(*shape) * 2).to(dtype)
    same(OURS.gated(x, activation), TWIN.gated(x, activation))  # type: ignore[arg-type]


@both
@pytest.mark.parametrize("normed", [True, False], ids=["normed", "plain"])
@pytest.mark.parametrize("shape", [(3, 4, 64), (1, 3, 128), (2, 2, 24), (0, 4, 64)], ids=str)
def test_norm_rope(shape: tuple[int, int, int], dtype: torch.dtype, normed: bool) -> None:
    tokens, heads, dim = shape
    positions = torch.arange(tokens, dtype=torch.int32) * 7
    rotation = Rotary(RopeParams(1e4), dim, 64).at(positions)
    # A slice of fused q, k and v: strided by tokens, as the models give it.
    x = random(tokens, heads + 2, dim).to(dtype)[:, 1 : heads + 1]
    norm = norm_of(dim, "rms") if normed else None
    same(OURS.norm_rope(x, rotation, norm), TWIN.norm_rope(x, rotation, norm))


@both
@pytest.mark.parametrize("tables", ["words", "words positions", "all"])
@pytest.mark.parametrize("shape", [(4, 48), (1, 33), (0, 16)], ids=str)
def test_embed_norm(shape: tuple[int, int], dtype: torch.dtype, tables: str) -> None:
    tokens, width = shape
    words = (random(20, width).to(dtype), torch.arange(tokens, dtype=torch.int32) * 3)
    places = (random(9, width, seed=3), torch.arange(tokens, dtype=torch.int32))
    types = (random(2, width, seed=4).to(dtype), torch.arange(tokens, dtype=torch.int32) % 2)
    positions = places if tables != "words" else None
    kinds = types if tables == "all" else None
    norm = norm_of(width, "layer", shift=tables != "words")
    got = OURS.embed_norm(words, positions, kinds, norm, dtype)
    same(got, TWIN.embed_norm(words, positions, kinds, norm, dtype))


@both
@pytest.mark.parametrize(
    "mode", ["mean", "max", "cls", "lasttoken", "weightedmean", "mean_sqrt_len"]
)
@pytest.mark.parametrize("width", [16, 33, 384])
def test_pool(width: int, dtype: torch.dtype, mode: str) -> None:
    """An empty slot, one token, an odd length, more rows than a tile, a gap between ranges."""
    x = random(60, width).to(dtype)
    starts = torch.tensor([0, 1, 4, 11, 60], dtype=torch.int32)
    ends = torch.tensor([1, 4, 9, 60, 60], dtype=torch.int32)
    got = OURS.pool(x, starts, ends, mode)  # type: ignore[arg-type]
    want = TWIN.pool(x, starts, ends, mode)  # type: ignore[arg-type]
    assert torch.allclose(got.pooled, want.pooled, atol=2e-5)
    assert torch.allclose(got.unit, want.unit, atol=2e-6)
    assert (got.int8.int() - want.int8.int()).abs().max() <= 1
    assert (got.int8 == want.int8).float().mean() > 0.99
    assert torch.equal(got.bits, want.bits)
    assert all(not t[4].any() for t in got)


@both
@pytest.mark.parametrize(
    "mode", ["mean", "max", "cls", "lasttoken", "weightedmean", "mean_sqrt_len"]
)
@pytest.mark.parametrize("width", [16, 33, 1100])
def test_reduce(width: int, dtype: torch.dtype, mode: str) -> None:
    """The same ranges, over one block of columns and over three; read with a stride."""
    x = random(60, width + 4).to(dtype)[:, 2 : width + 2]
    starts = torch.tensor([0, 1, 4, 11, 60], dtype=torch.int32)
    ends = torch.tensor([1, 4, 9, 60, 60], dtype=torch.int32)
    positions = torch.arange(60, dtype=torch.int32) % 25
    got, want = (
        kernels.reduce(x, starts, ends, mode, positions)  # type: ignore[arg-type]
        for kernels in (OURS, TWIN)
    )
    assert got.shape == (5, width) and got.dtype == torch.float32
    assert torch.allclose(got, want, atol=2e-5)
    assert not got[4].any()


def test_a_weighted_mean_counts_places_from_the_start_of_each_sequence() -> None:
    x = random(60, 33)
    positions = torch.cat((torch.arange(20), torch.arange(40))).int()
    starts, ends = (torch.tensor(v, dtype=torch.int32) for v in ([3, 20, 25, 60], [20, 25, 60, 60]))
    places = positions[3:20].float() + 1
    got, want = (
        kernels.pool(x, starts, ends, "weightedmean", positions).pooled for kernels in (OURS, TWIN)
    )
    assert torch.allclose(got, want, atol=1e-5)
    assert torch.allclose(got[0], places @ x[3:20] / places.sum(), atol=1e-5)


def test_pool_reads_a_slice_with_its_stride() -> None:
    wide = random(10, 64)
    x = wide[:, 16:48]
    starts, ends = (torch.tensor(v, dtype=torch.int32) for v in ([0, 3], [3, 10]))
    got, want = (k.pool(x, starts, ends, "mean").pooled for k in (OURS, TWIN))
    assert torch.allclose(got, want, atol=1e-6)


@pytest.mark.parametrize("mode", ["mean", "max"])
def test_a_poisoned_row_shows_in_its_slot_and_stays_there(mode: Any) -> None:
    x = random(6, 32)
    x[1] = float("nan")
    starts, ends = (torch.tensor(v, dtype=torch.int32) for v in ([0, 3], [3, 6]))
    for rows in (OURS.pool(x, starts, ends, mode).pooled, OURS.reduce(x, starts, ends, mode)):
        assert torch.isnan(rows[0]).all() and torch.isfinite(rows[1]).all()
