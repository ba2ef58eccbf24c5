"""LayerNorm and RMSNorm of whole rows: float32 in, float32 and activations out.

    layer:  (x - mean) / sqrt(variance + eps) * weight + bias
    rms:     x / sqrt(mean square + eps) * weight

    both:   target and acts take the result        acts:  only acts
    add:    target += the result

Two passes over a row that lies in L1: the mean first, then the squares of what is left, because
the one-pass formula cancels where a model has a few very large dimensions.
"""

from __future__ import annotations

from typing import Literal

from hedgerow_engine.native.ir import Function, Kernel, Ptr, Real, Unit

NormKind = Literal["layer", "rms"]
NormOutput = Literal["both", "acts", "add"]


def norm_rows(
    unit: Unit, kind: NormKind, width: int, eps: float, output: NormOutput = "both"
) -> Function:
    """Pointers source, weight, bias, target, acts; integers first and last row, the bytes from
    row to row of source, target and acts. The target may be the source. A `bias` of null is not
    read by "rms", nor `acts` written by "add"."""
    name = f"{kind}_norm_{width}_{output}"
    return unit.once(name, lambda: _norm_rows(unit, name, kind, width, eps, output))


def _norm_rows(
    unit: Unit, name: str, kind: NormKind, width: int, eps: float, output: NormOutput
) -> Function:
    k = unit.kernel(name, ptrs=5, ints=5)
    source, weight, bias, target, acts = k.ptrs
    first, last, source_step, target_step, acts_step = k.ints
    with k.loop(first, last) as row:
        x = source + row.index * source_step
        mean = k.splat(row_sum(k, x, width) * (1.0 / width)) if kind == "layer" else None
        scale = k.splat(inverse_deviation(k, x, width, mean, eps))
        x_out, acts_out = target + row.index * target_step, acts + row.index * acts_step
        with k.loop(0, width, k.rung.lanes) as col:
            at = col.index * 4
            value = k.load(x + at)
            if mean is not None:
                value = k.fma((value - mean) * scale, k.load(weight + at), k.load(bias + at))
            else:
                value = value * scale * k.load(weight + at)
            if output == "add":
                value = value + k.load(x_out + at)
            if output != "acts":
                k.store(value, x_out + at)
            if output != "add":
                k.store_act(value, acts_out + col.index * k.rung.act_bytes)
    return k.done()


def row_sum(k: Kernel, x: Ptr, width: int) -> Real:
    """The sum of `width` float32 numbers, as a scalar."""
    ways = _ways(k, width)
    with k.loop(0, width, k.rung.lanes * ways, carry=[k.real(0.0)] * ways) as loop:
        at = x + loop.index * 4
        loop.feed([s + k.load(at + i * k.rung.vector_bytes) for i, s in enumerate(loop.values)])
    return k.sum(_total(loop.values))


def inverse_deviation(k: Kernel, x: Ptr, width: int, mean: Real | None, eps: float) -> Real:
    """1 / sqrt(mean((x - mean) ** 2) + eps), as a scalar; no mean means 0."""
    ways = _ways(k, width)
    with k.loop(0, width, k.rung.lanes * ways, carry=[k.real(0.0)] * ways) as loop:
        at = x + loop.index * 4
        squares: list[Real] = []
        for i, total in enumerate(loop.values):
            value = k.load(at + i * k.rung.vector_bytes)
            value = value if mean is None else value - mean
            squares.append(k.fma(value, value, total))
        loop.feed(squares)
    variance = k.sum(_total(loop.values)) * (1.0 / width)
    return k.scalar(1.0) / k.unary("sqrt", variance + eps)


def _ways(k: Kernel, width: int) -> int:
    """Independent sums, so that additions need not wait for each other."""
    vectors = width // k.rung.lanes
    return next(ways for ways in (4, 3, 2, 1) if vectors % ways == 0)


def _total(values: list[Real]) -> Real:
    while len(values) > 1:
        values = [a + b for a, b in zip(values[::2], values[1::2])] + values[len(values) & ~1 :]
    return values[0]
