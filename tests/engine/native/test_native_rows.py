"""Kernels that work on single rows, against numpy: rotation, pooling, heads, unit length."""

from __future__ import annotations

import numpy as np
import pytest
from native_arrays import acts, floats

from hedgerow_engine.native.geometry import TailStep
from hedgerow_engine.native.ir import Function, Unit
from hedgerow_engine.native.pooling import pool, tail_step, unit_row
from hedgerow_engine.native.rotary import rotate_rows
from hedgerow_engine.native.tensors import Rope


@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("head_dim", [32, 64, 128])
def test_heads_turn_with_their_place_and_values_stay(
    callee, rung, tolerance, head_dim: int, normed: bool
) -> None:
    g = np.random.default_rng(head_dim)
    heads, kv_heads, length, eps = 3, 2, 6, 1e-5
    qkv = acts(g.normal(size=(length, (heads + 2 * kv_heads) * head_dim)), rung)
    before = floats(qkv).reshape(length, -1, head_dim)
    places = np.array([0, 5, 2, 9, 1, 3], np.int32)
    table = Rope(10000.0).table(head_dim, 12)
    weights = g.normal(size=(2, head_dim)).astype(np.float32) if normed else np.zeros((2, 1))
    key = ("rotate", head_dim, normed)
    call = callee(
        rung,
        key,
        lambda unit: rotate_rows(unit, heads, kv_heads, head_dim, eps if normed else None),
        5,
        3,
    )
    call(qkv, places, table, weights[0].copy(), weights[1].copy(), 1, 5, qkv.strides[0])

    want = before.copy()
    for row in range(1, 5):
        for head in range(heads + kv_heads):
            x = before[row, head]
            if normed:
                x = x / np.sqrt((x * x).mean() + eps) * weights[0 if head < heads else 1]
            low, high = np.split(x, 2)
            cos, sin = table[places[row]]
            want[row, head] = np.concatenate([low * cos - high * sin, high * cos + low * sin])
    got = floats(qkv).reshape(want.shape)
    assert np.abs(got - want).max() <= tolerance * (1 + np.abs(want).max())
    assert np.array_equal(got[:, heads + kv_heads :], before[:, heads + kv_heads :])


def _pooled(callee, rung, mode: str, x: np.ndarray, *rows: int) -> np.ndarray:
    target = np.zeros(x.shape[1], np.float32)
    call = callee(rung, ("pool", mode), lambda unit: pool(unit, mode, x.shape[1]), 2, 3)
    call(x, target, *rows)
    return target


@pytest.mark.parametrize("mode", ["mean", "max", "cls", "lasttoken", "mean_sqrt_len"])
@pytest.mark.parametrize("rows", [(2, 9, 0), (5, 9, 3), (4, 5, 0)], ids=str)
def test_pooling_takes_the_rows_it_was_given(callee, rung, mode: str, rows) -> None:
    x = np.random.default_rng(1).normal(size=(12, 64)).astype(np.float32)
    begin, end, _ = rows
    part = x[begin:end].astype(np.float64)
    want = {
        "mean": part.mean(0),
        "max": part.max(0),
        "cls": x[begin],
        "lasttoken": x[end - 1],
        "mean_sqrt_len": part.sum(0) / np.sqrt(end - begin),
    }[mode]
    np.testing.assert_allclose(_pooled(callee, rung, mode, x, *rows), want, rtol=1e-5, atol=1e-6)


def test_a_weighted_mean_counts_places_from_the_start_of_the_sequence(callee, rung) -> None:
    x = np.random.default_rng(1).normal(size=(12, 64)).astype(np.float32)
    places = np.arange(4, 8)
    want = places @ x[5:9] / places.sum()
    got = _pooled(callee, rung, "weightedmean", x, 5, 9, 3)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_the_maximum_shows_a_number_that_is_none(callee, rung) -> None:
    x = np.ones((12, 64), np.float32)
    x[6, 3] = np.nan
    got = _pooled(callee, rung, "max", x, 5, 9, 3)
    assert np.flatnonzero(np.isnan(got)).tolist() == [3]


@pytest.mark.parametrize("width", [1, 5, 16, 40])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", ["identity", "tanh"])
def test_a_dense_step_equals_numpy_and_pads_with_zeros(
    callee, rung, width: int, bias: bool, activation: str
) -> None:
    g = np.random.default_rng(width)
    step = TailStep("dense", 64, width, activation)
    source, weight = g.normal(size=64).astype(np.float32), g.normal(size=(width, 64))
    weight = weight.astype(np.float32)
    shift = g.normal(size=width).astype(np.float32)
    target = np.full(80, 7, np.float32)
    call = callee(rung, step, lambda unit: tail_step(unit, step), 4, 0)
    call(source, weight, shift if bias else 0, target)
    want = weight.astype(np.float64) @ source + (shift if bias else 0)
    want = np.tanh(want) if activation == "tanh" else want
    np.testing.assert_allclose(target[:width], want, rtol=1e-4, atol=2e-6)
    padded = -(-width // rung.lanes) * rung.lanes
    assert (target[width:padded] == 0).all() and (target[padded:] == 7).all()


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e6])
def test_unit_rows_have_length_one_and_zero_stays_zero(callee, rung, scale: float) -> None:
    def write(unit: Unit) -> Function:
        k = unit.kernel("unit", ptrs=2)
        unit_row(k, k.ptrs[0], k.ptrs[1], 96)
        return k.done()

    call = callee(rung, "unit", write, 2, 0)
    x = (np.random.default_rng(0).normal(size=96) * scale).astype(np.float32)
    out = np.empty_like(x)
    call(x, out)
    np.testing.assert_allclose(out, x / np.linalg.norm(x.astype(np.float64)), rtol=1e-6)
    call(np.zeros_like(x), out)
    assert (out == 0).all()
