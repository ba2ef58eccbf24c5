"""The plain torch form of each fused kernel against torch's own layers and numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hedgerow_engine.device.cuda.fp8 import LARGEST, Fp8Weight, by_rows
from hedgerow_engine.layers.kernels.twins import TorchKernels
from hedgerow_engine.layers.ops import Norm
from hedgerow_engine.layers.rotary import RopeParams, Rotary
from hedgerow_engine.outputs import cast

TWIN = TorchKernels()


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_add_norm_is_layer_norm_of_the_sum() -> None:
    x, residual, bias, weight, shift = (random(*s, seed=i) for i, s in enumerate(_SHAPES))
    normed, total = TWIN.add_norm(x, bias, residual, Norm(weight, shift, 1e-5))
    assert torch.allclose(total, x + bias + residual)
    want = torch.nn.functional.layer_norm(x + bias + residual, (24,), weight, shift, 1e-5)
    assert torch.allclose(normed, want, atol=1e-6)


_SHAPES = ((7, 24), (7, 24), (24,), (24,), (24,))


def test_rms_norm_is_torchs() -> None:
    x, weight = random(5, 24), random(24, seed=1)
    want = torch.nn.functional.rms_norm(x, (24,), weight, 1e-6)
    assert torch.allclose(TWIN.norm(x, Norm(weight, None, 1e-6, "rms")), want, atol=1e-6)


def test_rotation_turns_pairs_by_their_angle() -> None:
    """Pair (i, i + half) of a head is a point in the plane, turned by position x rate."""
    rotation = Rotary(RopeParams(100.0), 8, 16).at(torch.tensor([0, 3, 11], dtype=torch.int32))
    x = random(3, 2, 8)
    got = TWIN.norm_rope(x, rotation, None)
    points = torch.complex(x[..., :4], x[..., 4:])
    angles = torch.tensor([0.0, 3.0, 11.0])[:, None] * 100.0 ** -(torch.arange(4) / 4)
    turned = points * torch.polar(torch.ones(3, 4), angles)[:, None]
    assert torch.allclose(got, torch.cat((turned.real, turned.imag), -1), atol=1e-5)


@pytest.mark.parametrize("mode", ["mean", "max", "cls", "lasttoken", "weightedmean"])
def test_pooling_gives_all_forms_of_a_row(mode: str) -> None:
    x = random(9, 20)
    starts, ends = (torch.tensor(v, dtype=torch.int32) for v in ([0, 4, 9], [4, 9, 9]))
    made = TWIN.pool(x, starts, ends, mode)  # type: ignore[arg-type]
    part = x[4:9].numpy()
    want = {
        "mean": part.mean(0),
        "max": part.max(0),
        "cls": part[0],
        "lasttoken": part[-1],
        "weightedmean": (part * np.arange(1, 6)[:, None]).sum(0) / 15,
    }[mode]
    assert np.allclose(made.pooled[1], want, atol=1e-6)
    assert np.allclose(made.unit[1], want / np.linalg.norm(want), atol=1e-6)
    assert np.array_equal(made.int8, cast(made.unit.numpy(), "int8"))
    assert np.array_equal(made.bits, cast(made.pooled.numpy(), "binary"))
    assert all(not t[2].any() for t in made), "an empty slot is zero"


def test_float8_rows_use_their_whole_range() -> None:
    packed, scale = by_rows(torch.tensor([[1.0, -2.0], [1000.0, 0.0], [0.0, 0.0]]))
    assert packed.float().abs().amax(1).tolist() == [LARGEST, LARGEST, 0.0]
    assert torch.allclose(packed.float() * scale, torch.tensor([[1.0, -2], [1000, 0], [0, 0]]))


def test_a_float8_product_stays_close_to_the_exact_one() -> None:
    """The cosine of one linear; torch multiplies float8 by rows on this CPU, or it is emulated
    with the same rounding (products and sums in float32)."""
    x, weight = random(33, 256, seed=2), random(64, 256, seed=3)
    exact = x @ weight.t()
    try:
        got = Fp8Weight(weight, torch.bfloat16)(x).float()
    except (RuntimeError, NotImplementedError):
        (rows, scale), (columns, other) = by_rows(x), by_rows(weight)
        got = (rows.float() @ columns.float().t()) * scale * other.t()
    cosine = torch.nn.functional.cosine_similarity(got, exact, dim=1)
    assert float(cosine.min()) > 0.998


def test_float8_wants_sides_that_are_multiples_of_16() -> None:
    assert Fp8Weight.fits(torch.zeros(32, 48))
    assert not Fp8Weight.fits(torch.zeros(30, 48)) and not Fp8Weight.fits(torch.zeros(32, 40))
