"""The matrix product against numpy, for every tile height and epilogue."""

from __future__ import annotations

import math

import numpy as np
import pytest
from native_arrays import acts, floats, pack

from hedgerow_engine.native import epilogue
from hedgerow_engine.native.gemm import gemm

EPILOGUES = {
    "store": epilogue.store(),
    "gelu": epilogue.activate("gelu"),
    "gate_silu": epilogue.gate("silu"),
    "residual": epilogue.add_residual(),
}


def _run(callee, rung, name, a, w, bias, residual, blocks=None):
    """Multiply through the kernel; a and w float32, already rounded to the rung's type."""
    rows, depth = a.shape
    n = w.shape[0]
    width = n // 2 if name.startswith("gate") else n
    kind = np.float32 if name == "residual" else acts(np.zeros(1), rung).dtype
    c = np.full((rows, width), 7, kind)
    first, last = blocks or (0, n // rung.columns)
    call = callee(rung, f"gemm_{name}", lambda unit: gemm(unit, EPILOGUES[name]), 5, 7)
    a_acts = acts(a, rung)
    call(
        a_acts, pack(w, rung), bias, c, residual,
        rows, depth // rung.group, first, last, a_acts.strides[0], c.strides[0], n * 4,
    )  # fmt: skip
    return c


def _case(rung, rows, depth, n, seed=0):
    g = np.random.default_rng(seed)
    a = floats(acts(g.normal(size=(rows, depth)), rung)).astype(np.float32)
    w = floats(acts(g.normal(size=(n, depth)) / math.sqrt(depth), rung)).astype(np.float32)
    bias = g.normal(size=n).astype(np.float32)
    return a, w, bias, g.normal(size=(rows, n)).astype(np.float32)


def _reference(rung, name, a, w, bias, residual):
    sums = a.astype(np.float64) @ w.astype(np.float64).T + bias
    if name == "gelu":
        return sums * 0.5 * (1 + np.vectorize(math.erf)(sums / math.sqrt(2)))
    if name == "residual":
        return sums + residual
    if name == "gate_silu":
        half = rung.columns // 2
        parts = sums.reshape(sums.shape[0], -1, 2, half)
        gate, up = (parts[:, :, i].reshape(sums.shape[0], -1) for i in range(2))
        return gate / (1 + np.exp(-gate)) * up
    return sums


@pytest.mark.parametrize("name", EPILOGUES)
@pytest.mark.parametrize("rows", [1, 2, 3, 5, 7, 8, 9, 17, 40])
def test_product_equals_numpy(callee, rung, tolerance, name: str, rows: int) -> None:
    a, w, bias, residual = _case(rung, rows, 96, 96)
    got = floats(_run(callee, rung, name, a, w, bias, residual))
    want = _reference(rung, name, a, w, bias, residual)
    assert np.max(np.abs(got - want) / (1 + np.abs(want))) <= tolerance


def test_a_row_has_the_same_bytes_in_every_tile(callee, rung) -> None:
    a, w, bias, residual = _case(rung, 40, 64, 64)
    whole = _run(callee, rung, "residual", a, w, bias, residual)
    for rows in range(1, 40):
        part = _run(callee, rung, "residual", a[-rows:], w, bias, residual[-rows:].copy())
        assert np.array_equal(part, whole[-rows:])


def test_only_the_asked_column_blocks_are_written(callee, rung) -> None:
    a, w, bias, residual = _case(rung, 5, 64, 128)
    whole = _run(callee, rung, "residual", a, w, bias, residual)
    part = _run(callee, rung, "residual", a, w, bias, residual, blocks=(1, 2))
    inside = slice(rung.columns, 2 * rung.columns)
    assert np.array_equal(part[:, inside], whole[:, inside])
    assert (np.delete(part, np.r_[inside], axis=1) == 7).all()
