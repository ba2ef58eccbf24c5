"""The polynomial functions against math's, over the whole range they are used on."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hedgerow_engine.native import approx
from hedgerow_engine.native.ir import Function, Unit

X = np.concatenate([np.linspace(-30, 30, 60000), [0.0, -0.0, 1e-30, -1e-30]]).astype(np.float32)
X = X[: X.size // 16 * 16]


def _reference(name: str, x: np.ndarray) -> np.ndarray:
    erf = np.vectorize(math.erf)
    with np.errstate(over="ignore"):
        return {
            "exp2": lambda: 2.0**x,
            "gelu": lambda: x * 0.5 * (1 + erf(x / math.sqrt(2))),
            "gelu_tanh": lambda: (
                x * 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
            ),
            "silu": lambda: x / (1 + np.exp(-x)),
            "tanh": lambda: np.tanh(x),
            "relu": lambda: np.maximum(x, 0),
        }[name]()


def _apply(callee, rung, name: str, x: np.ndarray) -> np.ndarray:
    def write(unit: Unit) -> Function:
        k = unit.kernel(name, ptrs=2, ints=1)
        source, target = k.ptrs
        with k.loop(0, k.ints[0], rung.vector_bytes) as loop:
            k.store(getattr(approx, name)(k, k.load(source + loop.index)), target + loop.index)
        return k.done()

    out = np.empty_like(x)
    callee(rung, name, write, 2, 1)(x, out, x.nbytes)
    return out


@pytest.mark.parametrize(
    ("name", "short_error", "long_error"),
    [
        ("exp2", 8e-5, 3e-7),
        ("gelu", 2e-3, 2e-5),
        ("gelu_tanh", 2e-3, 3e-6),
        ("silu", 2e-3, 3e-6),
        ("tanh", 2e-4, 1e-6),
        ("relu", 0.0, 0.0),
    ],
)
def test_approximation_stays_within_its_stated_error(
    callee, rung, name: str, short_error: float, long_error: float
) -> None:
    got = _apply(callee, rung, name, X).astype(np.float64)
    want = _reference(name, X.astype(np.float64))
    scale = np.abs(want) if name == "exp2" else 1.0
    bound = short_error if rung.dtype == "bfloat16" else long_error
    assert np.max(np.abs(got - want) / scale) <= bound


def test_gelu_near_zero_is_as_exact_as_the_activations(callee, rung) -> None:
    x = X[np.abs(X) < 4]
    x = x[: x.size // 16 * 16]
    error = np.abs(_apply(callee, rung, "gelu", x) - _reference("gelu", x.astype(np.float64)))
    assert error.max() <= (2e-4 if rung.dtype == "bfloat16" else 2e-6)


def test_exp2_of_a_masked_score_is_exactly_zero(callee, rung) -> None:
    x = np.full(16, -1e30, np.float32)
    assert np.array_equal(_apply(callee, rung, "exp2", x), np.zeros(16, np.float32))


@pytest.mark.parametrize("name", ["exp2", "gelu", "gelu_tanh", "silu", "tanh", "relu"])
def test_not_a_number_stays_not_a_number(callee, rung, name: str) -> None:
    x = np.full(16, np.nan, np.float32)
    assert np.isnan(_apply(callee, rung, name, x)).all()
