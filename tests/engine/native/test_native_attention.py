"""Attention of one sequence against numpy: lengths around every edge, masks, shared key heads."""

from __future__ import annotations

import numpy as np
import pytest
from native_arrays import acts, floats

from hedgerow_engine.native.attention import AttentionSpec, attention, scratch_bytes
from hedgerow_engine.native.attention_tile import KEY_BLOCK

FAR = 1 << 30
EDGES = [1, 2, 5, 7, 8, 9, 15, 16, 17, 31, 33, 100, KEY_BLOCK - 1, KEY_BLOCK, KEY_BLOCK + 1, 1100]


class Case:
    """q, k, v of one sequence inside a larger buffer full of not-a-number."""

    def __init__(self, rung, length, head_dim, query_heads=1, seed=0) -> None:
        g = np.random.default_rng(seed)
        self.length, self.head_dim, self.query_heads = length, head_dim, query_heads
        width = (query_heads + 2) * head_dim
        numbers = np.full((length + 40, width), np.nan, np.float32)
        numbers[20 : 20 + length] = g.normal(size=(length, width))
        numbers[:, : query_heads * head_dim] *= 1.44 / np.sqrt(head_dim)
        self.buffer = acts(numbers, rung)
        self.inside = floats(self.buffer)[20 : 20 + length]

    def expected(self, back=FAR, ahead=FAR, bias=None) -> np.ndarray:
        hd, n = self.head_dim, self.query_heads
        keys, values = self.inside[:, n * hd : (n + 1) * hd], self.inside[:, (n + 1) * hd :]
        distance = np.arange(self.length)[None] - np.arange(self.length)[:, None]
        hidden = (distance < -back) | (distance > ahead)
        heads = []
        for h in range(n):
            scores = self.inside[:, h * hd : (h + 1) * hd] @ keys.T
            if bias is not None:
                scores = scores + bias[h, self.length - 1 + distance]
            scores[hidden] = -np.inf
            weights = 2.0 ** (scores - scores.max(axis=1, keepdims=True))
            heads.append(weights / weights.sum(axis=1, keepdims=True) @ values)
        return np.concatenate(heads, axis=1)


def _run(
    callee, rung, case: Case, windowed=False, back=FAR, ahead=FAR, bias=None, rows=None
) -> np.ndarray:
    """rows: (first, count) of the query rows; None = all."""
    skipped, count = rows or (0, case.length)
    spec = AttentionSpec(case.head_dim, case.query_heads, windowed, bias is not None)
    call = callee(rung, ("attention", spec), lambda unit: attention(unit, spec), 6, 8)
    table = np.zeros((1, 1)) if bias is None else np.pad(bias, ((0, 0), (0, rung.lanes)))
    table = table.astype(np.float32)
    out = np.zeros((case.length + 40, case.query_heads * case.head_dim), case.buffer.dtype)
    out[:] = 9
    room = np.full(scratch_bytes(rung, case.head_dim, case.length) + 128, 255, np.uint8)
    skip = -room.ctypes.data % 64
    row, step, item = case.buffer[20:], case.buffer.strides[0], case.buffer.itemsize
    start, hd = row.ctypes.data, case.head_dim * item
    call(
        start + skipped * step, start + case.query_heads * hd, start + (case.query_heads + 1) * hd,
        out[20 + skipped :].ctypes.data, table.ctypes.data + (case.length - 1) * 4,
        room.ctypes.data + skip,
        case.length, count, skipped, step, out.strides[0], back, ahead, table.strides[0],
    )  # fmt: skip
    assert (room[skip + scratch_bytes(rung, case.head_dim, case.length) :] == 255).all()
    assert (out[:20] == 9).all() and (out[20 + case.length :] == 9).all()
    return out[20 : 20 + case.length]


def _close(got, want, rung) -> None:
    assert np.isfinite(floats(got)).all()
    error = np.abs(floats(got) - want).max()
    assert error <= (2e-2 if rung.dtype == "bfloat16" else 1e-5), error


@pytest.mark.parametrize("length", EDGES)
def test_every_length_equals_numpy_and_touches_no_neighbour(callee, rung, length: int) -> None:
    case = Case(rung, length, 32)
    _close(_run(callee, rung, case), case.expected(), rung)


@pytest.mark.parametrize("head_dim", [64, 96, 128])
@pytest.mark.parametrize("length", [3, 50, 600])
def test_every_head_size_equals_numpy(callee, rung, head_dim: int, length: int) -> None:
    case = Case(rung, length, head_dim)
    _close(_run(callee, rung, case), case.expected(), rung)


@pytest.mark.parametrize("length", [1, 9, 40, 513, 1100])
@pytest.mark.parametrize(
    ("back", "ahead"), [(FAR, 0), (64, 64), (3, 0), (0, 0), (700, 700)], ids=str
)
def test_windows_equal_a_masked_softmax(callee, rung, length: int, back: int, ahead: int) -> None:
    case = Case(rung, length, 32, seed=length)
    got = _run(callee, rung, case, True, back, ahead)
    _close(got, case.expected(back, ahead), rung)


@pytest.mark.parametrize("length", [1, 9, 40, 513])
def test_a_bias_of_the_distance_is_added_to_each_heads_scores(callee, rung, length: int) -> None:
    case = Case(rung, length, 32, query_heads=2)
    bias = np.random.default_rng(1).normal(size=(2, 2 * length - 1)).astype(np.float32)
    got = _run(callee, rung, case, bias=bias)
    _close(got, case.expected(bias=bias), rung)


@pytest.mark.parametrize("length", [1, 20, 700])
@pytest.mark.parametrize("windowed", [False, True])
def test_one_query_row_alone_has_the_bytes_it_has_among_all(
    callee, rung, length: int, windowed: bool
) -> None:
    case = Case(rung, length, 32)
    bias = np.random.default_rng(1).normal(size=(1, 2 * length - 1)).astype(np.float32)
    options = {"windowed": windowed, "back": 40, "ahead": 3, "bias": bias}
    whole = _run(callee, rung, case, **options)
    for row in {0, length // 2, length - 1}:
        alone = _run(callee, rung, case, **options, rows=(row, 1))
        assert np.array_equal(alone[row], whole[row])
        assert (np.delete(alone, row, axis=0) == 9).all()


def test_query_heads_share_their_key_head(callee, rung) -> None:
    case = Case(rung, 70, 32, query_heads=3)
    _close(_run(callee, rung, case), case.expected(), rung)


def test_a_token_that_is_not_a_number_spoils_its_sequence_visibly(callee, rung) -> None:
    case = Case(rung, 20, 32)
    case.buffer[25, 32] = acts(np.array([np.nan]), rung)[0]
    assert np.isnan(floats(_run(callee, rung, case))).all()


def test_large_scores_do_not_overflow(callee, rung) -> None:
    case = Case(rung, 40, 32)
    numbers = floats(case.buffer).astype(np.float32)
    numbers[:, :64] *= 60
    case.buffer = acts(numbers, rung)
    case.inside = floats(case.buffer)[20:60]
    _close(_run(callee, rung, case), case.expected(), rung)
