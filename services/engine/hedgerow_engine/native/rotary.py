"""Queries and keys of rows, normalised per head (optional), then rotated by their place.

    head = [low half | high half]
    low'  = low * cos - high * sin          cos, sin: [head_dim / 2] of the row's place
    high' = high * cos + low * sin

In place, in the projection's buffer: query heads, then key heads, head_dim numbers each. The
softmax scale rides on the query's norm weight, or on the query projection where there is none.
"""

from __future__ import annotations

from hedgerow_engine.native.ir import Function, Int, Kernel, Ptr, Real, Unit


def rotate_rows(
    unit: Unit, heads: int, kv_heads: int, head_dim: int, eps: float | None
) -> Function:
    """Pointers qkv, places (int32), table, q_norm, k_norm; integers first and last row, bytes
    from row to row. `eps`: of the RMS norm of each head; None = no norm, its weights are null.

    table: float32 [positions][cos, sin][head_dim / 2].
    """
    return unit.once("rotate", lambda: _rotate_rows(unit, heads, kv_heads, head_dim, eps))


def _rotate_rows(
    unit: Unit, heads: int, kv_heads: int, head_dim: int, eps: float | None
) -> Function:
    k = unit.kernel("rotate", ptrs=5, ints=3)
    qkv, places, table, q_norm, k_norm = k.ptrs
    first, last, step = k.ints
    head_bytes = head_dim * k.rung.act_bytes
    with k.loop(first, last) as row:
        place = k.load_int32(places + row.index * 4)
        angles, start = table + place * (head_dim * 4), qkv + row.index * step
        groups = ((start, heads, q_norm), (start + heads * head_bytes, kv_heads, k_norm))
        for at, count, weight in groups:
            with k.loop(0, count) as head:
                _rotate_head(k, at + head.index * head_bytes, angles, weight, head_dim, eps)
    return k.done()


def _rotate_head(
    k: Kernel, head: Ptr, angles: Ptr, weight: Ptr, head_dim: int, eps: float | None
) -> None:
    half, lanes, act = head_dim // 2, k.rung.lanes, k.rung.act_bytes
    low = [k.load_act(head + i * act) for i in range(0, half, lanes)]
    high = [k.load_act(head + (half + i) * act) for i in range(0, half, lanes)]
    if eps is not None:
        scale = _inverse_rms(k, low + high, head_dim, eps)
        weights = [k.load(weight + i * 4) for i in range(0, head_dim, lanes)]
        scaled = [x * scale * w for x, w in zip(low + high, weights, strict=True)]
        low, high = scaled[: len(low)], scaled[len(low) :]
    for i, (x, y) in enumerate(zip(low, high, strict=True)):
        cos = k.load(angles + i * lanes * 4)
        sin = k.load(angles + (half + i * lanes) * 4)
        k.store_act(k.fma(x, cos, y * sin * -1.0), head + i * lanes * act)
        k.store_act(k.fma(y, cos, x * sin), head + (half + i * lanes) * act)


def _inverse_rms(k: Kernel, values: list[Real], width: int, eps: float) -> Real:
    total = values[0] * values[0]
    for value in values[1:]:
        total = k.fma(value, value, total)
    mean = k.sum(total) * (1.0 / width)
    return k.splat(k.scalar(1.0) / k.unary("sqrt", mean + eps))


def write_places(k: Kernel, places: Ptr, first: Int, length: Int) -> None:
    """places[first + i] = i for a sequence's rows."""
    with k.loop(0, length) as row:
        k.store_int32(row.index, places + (first + row.index) * 4)
