"""The language kernels are written in means what it says: integers, loops, conditions, calls."""

from __future__ import annotations

import numpy as np
import pytest

from hedgerow_engine.native.ir import Function, Int, Kernel, Unit


def _ints(callee, rung, key: str, body, *arguments: int) -> list[int]:
    """Run `body(kernel, *ints) -> [Int]` and return what it gave."""
    size = []

    def write(unit: Unit) -> Function:
        k = unit.kernel(f"ints_{key}", ptrs=1, ints=len(arguments))
        results = body(k, *k.ints)
        size.append(len(results))
        for i, value in enumerate(results):
            k.store_int(value, k.ptrs[0] + 8 * i)
        return k.done()

    out = np.zeros(16, np.int64)
    callee(rung, ("ir", key, len(arguments)), write, 1, len(arguments))(out, *arguments)
    return out.tolist()


@pytest.mark.parametrize(("a", "b"), [(17, 5), (16, 8), (3, 7), (0, 1)])
def test_integers_compute_like_pythons(callee, rung, a: int, b: int) -> None:
    def body(k: Kernel, x: Int, y: Int) -> list[Int]:
        return [
            x + y, x - y, 3 * x + 1, x // y, x.at_most(y), x.at_least(y),
            x.up_to(8), x.down_to(8), k.choose(x < y, x, y), k.choose(x.equals(y), y, x),
        ]  # fmt: skip

    want = [a + b, a - b, 3 * a + 1, a // b, min(a, b), max(a, b)]
    want += [-(-a // 8) * 8, a // 8 * 8, min(a, b), a]
    assert _ints(callee, rung, "arithmetic", body, a, b)[:10] == want


@pytest.mark.parametrize(("start", "stop"), [(0, 5), (3, 4), (4, 4), (9, 2), (0, 14)])
def test_a_loop_runs_over_pythons_range(callee, rung, start: int, stop: int) -> None:
    def write(unit: Unit) -> Function:
        k = unit.kernel("ranges", ptrs=1, ints=2)
        with k.loop(k.ints[0], k.ints[1], 3) as loop:
            k.store_int(loop.index + 100, k.ptrs[0] + loop.index * 8)
        return k.done()

    out = np.zeros(16, np.int64)
    callee(rung, "ranges", write, 1, 2)(out, start, stop)
    want = np.zeros(16, np.int64)
    for i in range(start, stop, 3):
        want[i] = i + 100
    assert np.array_equal(out, want)


def test_carried_values_start_as_given_and_end_as_fed(callee, rung) -> None:
    def write(unit: Unit) -> Function:
        k = unit.kernel("carry", ptrs=1, ints=1)
        with k.loop(0, k.ints[0], carry=[k.real(1.0), k.real(5.0)]) as loop:
            double, other = loop.values
            loop.feed([double * 2.0, other])
        k.store(loop.values[0], k.ptrs[0])
        k.store(loop.values[1], k.ptrs[0] + rung.vector_bytes)
        return k.done()

    for turns in (0, 1, 6):
        out = np.zeros(2 * rung.lanes, np.float32)
        callee(rung, "carry", write, 1, 1)(out, turns)
        assert (out[: rung.lanes] == 2.0**turns).all() and (out[rung.lanes :] == 5.0).all()


def test_when_runs_its_body_only_if_true_and_dispatch_calls_the_nth(callee, rung) -> None:
    def write(unit: Unit) -> Function:
        marks = []
        for n in (1, 2, 3):
            mark = unit.kernel(f"mark_{n}", ptrs=1)
            mark.store_int(n, mark.ptrs[0])
            marks.append(mark.done())
        k = unit.kernel("branches", ptrs=1, ints=1)
        k.dispatch(k.ints[0], marks, [k.ptrs[0]], [])
        with k.when(k.ints[0] > 1):
            k.store_int(77, k.ptrs[0] + 8)
        return k.done()

    for n in (1, 2, 3):
        out = np.zeros(2, np.int64)
        callee(rung, "branches", write, 1, 1)(out, n)
        assert out.tolist() == [n, 77 if n > 1 else 0]


def test_horizontal_sums_and_maxima_see_every_lane(callee, rung) -> None:
    def write(unit: Unit) -> Function:
        k = unit.kernel("horizontal", ptrs=2)
        value = k.load(k.ptrs[0])
        k.store_scalar(k.sum(value), k.ptrs[1])
        k.store_scalar(k.largest(value), k.ptrs[1] + 4)
        return k.done()

    call = callee(rung, "horizontal", write, 2, 0)
    for lane in range(rung.lanes):
        numbers = np.full(rung.lanes, -3.0, np.float32)
        numbers[lane] = 8.0
        out = np.zeros(2, np.float32)
        call(numbers, out)
        assert out.tolist() == [8.0 - 3.0 * (rung.lanes - 1), 8.0]
