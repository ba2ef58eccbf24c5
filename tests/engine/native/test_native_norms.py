"""Norms and embedding sums against numpy."""

from __future__ import annotations

import numpy as np
import pytest
from native_arrays import acts, floats, to_bfloat16

from hedgerow_engine.native.embed import EmbedSpec, embed_sequence
from hedgerow_engine.native.norms import norm_rows


def _norm(kind, x, weight, bias, eps):
    x = x.astype(np.float64)
    if kind == "layer":
        x = x - x.mean(axis=1, keepdims=True)
        return x / np.sqrt((x**2).mean(axis=1, keepdims=True) + eps) * weight + bias
    return x / np.sqrt((x**2).mean(axis=1, keepdims=True) + eps) * weight


def _run(callee, rung, kind, x, weight, bias, *, output="both", first=0, last=None):
    width = x.shape[1]
    key = ("norm", kind, width, output)
    call = callee(rung, key, lambda unit: norm_rows(unit, kind, width, 1e-5, output), 5, 5)
    target = np.full_like(x, 5.0)
    out = acts(np.full_like(x, 5.0), rung)
    steps = (x.strides[0], target.strides[0], out.strides[0])
    call(x, weight, bias, target, out, first, last or x.shape[0], *steps)
    return target, out


@pytest.mark.parametrize("kind", ["layer", "rms"])
@pytest.mark.parametrize("width", [32, 48, 96, 384, 1024])
def test_norm_equals_numpy(callee, rung, tolerance, kind: str, width: int) -> None:
    g = np.random.default_rng(width)
    x = (g.normal(size=(7, width)) * 3 + 1).astype(np.float32)
    weight, bias = g.normal(size=(2, width)).astype(np.float32)
    want = _norm(kind, x, weight, bias, 1e-5)
    target, out = _run(callee, rung, kind, x, weight, bias)
    np.testing.assert_allclose(target, want, rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(floats(out), want, rtol=tolerance, atol=1e-5)


def test_norm_can_leave_the_residual_alone_and_stays_in_its_rows(callee, rung) -> None:
    x = np.random.default_rng(0).normal(size=(6, 64)).astype(np.float32)
    ones = np.ones(64, np.float32)
    target, out = _run(callee, rung, "rms", x, ones, ones, output="acts", first=2, last=4)
    assert (target == 5.0).all()
    assert (floats(out)[[0, 1, 4, 5]] == 5.0).all()
    np.testing.assert_allclose(
        floats(out)[2:4], _norm("rms", x, ones, ones, 1e-5)[2:4], rtol=5e-3, atol=1e-5
    )


def test_norm_can_be_added_to_the_residual(callee, rung) -> None:
    x = np.random.default_rng(0).normal(size=(3, 64)).astype(np.float32)
    weight = np.linspace(0.5, 1.5, 64, dtype=np.float32)
    target, out = _run(callee, rung, "rms", x, weight, weight, output="add")
    np.testing.assert_allclose(target, 5.0 + _norm("rms", x, weight, None, 1e-5), rtol=1e-5)
    assert (floats(out) == 5.0).all()


def test_a_large_common_offset_does_not_cancel(callee, rung) -> None:
    g = np.random.default_rng(3)
    x = (g.normal(size=(3, 384)) + 1000).astype(np.float32)
    ones, zeros = np.ones(384, np.float32), np.zeros(384, np.float32)
    target, _ = _run(callee, rung, "layer", x, ones, zeros)
    np.testing.assert_allclose(target, _norm("layer", x, ones, zeros, 1e-5), atol=2e-3)


@pytest.mark.parametrize("table", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("pair_start", [0, 3])
def test_embedding_sums_word_and_position_by_token_type(
    callee, rung, table: str, pair_start: int
) -> None:
    g = np.random.default_rng(1)
    width, positions = 64, 12
    word = g.normal(size=(50, width)).astype(np.float32)
    tables = g.normal(size=(2 * positions, width)).astype(np.float32)
    raw = {"F32": word, "F16": word.astype(np.float16), "BF16": to_bfloat16(word)}[table]
    spec = EmbedSpec(width, table, positions, types=2, scale=2.0)
    ids = np.array([4, 49, 0, 7, 7], np.int32)
    x = np.zeros((5, width), np.float32)
    call = callee(rung, spec, lambda unit: embed_sequence(unit, spec), 4, 2)
    call(ids, raw, tables, x, 5, pair_start)
    places = np.arange(5)
    if pair_start:
        places[pair_start:] += positions
    want = floats(raw)[ids] * 2 + tables[places]
    np.testing.assert_allclose(x, want, rtol=1e-6, atol=1e-6)
