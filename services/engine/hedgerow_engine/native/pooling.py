"""From token rows to one row of the answer: pooling, dense layers, unit length. All float32.

These run once per sequence, on one row, so they are written plainly: exactness first.
"""

from __future__ import annotations

from collections.abc import Callable

from hedgerow_engine.native import approx
from hedgerow_engine.native.geometry import TailActivation, TailStep
from hedgerow_engine.native.ir import Function, Int, Kernel, Ptr, Real, Unit
from hedgerow_engine.native.norms import inverse_deviation, norm_rows
from hedgerow_shared.modelcard import PoolingMode

_ACTIVATIONS: dict[TailActivation, Callable[[Kernel, Real], Real]] = {
    "tanh": approx.tanh,
    "gelu": approx.gelu,
    "gelu_tanh": approx.gelu_tanh,
    "relu": approx.relu,
    "silu": approx.silu,
    "sigmoid": approx.sigmoid,
}


def pool(unit: Unit, mode: PoolingMode, width: int) -> Function:
    """Pointers x (the pass's first row), target; integers begin, end, offset (`POOL` in
    words.py). Writes float32 [width]."""
    return unit.once(f"pool_{mode}", lambda: _pool(unit, mode, width))


def _pool(unit: Unit, mode: PoolingMode, width: int) -> Function:
    k = unit.kernel(f"pool_{mode}", ptrs=2, ints=3)
    x, target = k.ptrs
    begin, end, offset = k.ints
    row_bytes = width * 4
    with k.loop(0, width, k.rung.lanes) as col:
        at, column = col.index * 4, x + col.index * 4
        if mode in ("cls", "lasttoken"):
            row = begin if mode == "cls" else end - 1
            total = k.load(column + row * row_bytes)
        else:
            total = _total(k, mode, column, row_bytes, (begin, end, offset))
        if mode in ("mean", "mean_sqrt_len", "weightedmean"):
            total = total * k.splat(k.scalar(1.0) / _weight(k, mode, end - begin, offset))
        k.store(total, target + at)
    return k.done()


def _total(
    k: Kernel, mode: PoolingMode, column: Ptr, row_bytes: int, rows: tuple[Int, Int, Int]
) -> Real:
    """The sum, weighted sum or largest of one vector of columns over rows [begin, end)."""
    begin, end, offset = rows
    first = k.real(-3.4e38) if mode == "max" else k.real(0.0)
    with k.loop(begin, end, carry=[first]) as row:
        value, total = k.load(column + row.index * row_bytes), row.values[0]
        if mode == "max":
            # Not a number wins and stays, so that it is seen.
            row.feed([k.choose(value.below(total) | total.is_nan(), total, value)])
        elif mode == "weightedmean":
            place = k.splat(k.to_real(row.index - begin + offset + 1))
            row.feed([k.fma(value, place, total)])
        else:
            row.feed([total + value])
    return row.values[0]


def _weight(k: Kernel, mode: PoolingMode, count: Int, offset: Int) -> Real:
    """What a sum of rows is divided by."""
    if mode == "mean":
        return k.to_real(count)
    if mode == "mean_sqrt_len":
        return k.unary("sqrt", k.to_real(count))
    # offset + 1 + ... + offset + count
    return k.to_real((offset + offset + count + 1) * count // 2)


def tail_step(unit: Unit, step: TailStep) -> Function:
    """Pointers source, weight, bias (null = none), target; float32, target padded with zeros to
    whole vectors. Weights are row-major [width_out, width_in], as in their file."""
    name = f"tail_{step.kind}_{step.width_in}_{step.width_out}_{step.activation}"
    if step.kind == "dense":
        return unit.once(name, lambda: _dense(unit, name, step))
    if step.kind in ("unit", "quantize"):
        return unit.once(name, lambda: _elementwise(unit, name, step))
    return unit.once(name, lambda: _tail_norm(unit, name, step))


def _elementwise(unit: Unit, name: str, step: TailStep) -> Function:
    """A whole number of vectors, without weights."""
    k = unit.kernel(name, ptrs=4)
    source, target, k.precise = k.ptrs[0], k.ptrs[3], True
    if step.kind == "unit":
        unit_row(k, source, target, step.width_in)
        return k.done()
    with k.loop(0, step.width_in, k.rung.lanes) as col:
        at = col.index * 4
        # Ties to even, and a small negative number keeps its sign: it is the binary output.
        rounded = k.unary("roundeven", approx.tanh(k, k.load(source + at)) * 127.0)
        k.store(rounded, target + at)
    return k.done()


def _dense(unit: Unit, name: str, step: TailStep) -> Function:
    k = unit.kernel(name, ptrs=4)
    source, weight, bias, target = k.ptrs
    k.precise, lanes = True, k.rung.lanes
    k.store(k.real(0.0), target + (step.width_out - 1) // lanes * lanes * 4)
    no_bias = bias.is_null()
    with k.loop(0, step.width_out) as n:
        row = weight + n.index * (step.width_in * 4)
        with k.loop(0, step.width_in, lanes, carry=[k.real(0.0)]) as col:
            at = col.index * 4
            col.feed([k.fma(k.load(source + at), k.load(row + at), col.values[0])])
        # With no bias any readable address will do: its number is not taken.
        place = k.choose(no_bias, weight, bias)
        shift = k.load_scalar(place + n.index * 4)
        total = k.sum(col.values[0]) + k.choose(no_bias, k.scalar(0.0), shift)
        k.store_scalar(total, target + n.index * 4)
    if step.activation != "identity":
        function = _ACTIVATIONS[step.activation]
        with k.loop(0, step.width_out, lanes) as col:
            at = target + col.index * 4
            k.store(function(k, k.load(at)), at)
    return k.done()


def _tail_norm(unit: Unit, name: str, step: TailStep) -> Function:
    """A norm of one row; its activations go nowhere anyone looks: the row after the target."""
    assert step.kind in ("layer", "rms")
    norm = norm_rows(unit, step.kind, step.width_in, step.eps)
    k = unit.kernel(name, ptrs=4)
    source, weight, bias, target = k.ptrs
    norm(k, [source, weight, bias, target, target + step.width_in * 4], [0, 1, 0, 0, 0])
    return k.done()


def copy_row(k: Kernel, source: Ptr, target: Ptr, width: int) -> None:
    """`width` numbers, one by one where they are no whole number of vectors."""
    vectors = width % k.rung.lanes == 0
    with k.loop(0, width, k.rung.lanes if vectors else 1) as col:
        at = col.index * 4
        if vectors:
            k.store(k.load(source + at), target + at)
        else:
            k.store_scalar(k.load_scalar(source + at), target + at)


def unit_row(k: Kernel, source: Ptr, target: Ptr, width: int) -> None:
    """The row scaled to length 1; `width` is a whole number of vectors."""
    tiny = 1e-24 / width
    scale = k.splat(inverse_deviation(k, source, width, None, tiny) * (width**-0.5))
    with k.loop(0, width, k.rung.lanes) as col:
        at = col.index * 4
        k.store(k.load(source + at) * scale, target + at)
