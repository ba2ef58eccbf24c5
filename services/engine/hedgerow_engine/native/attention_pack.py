"""Keys and values of one head, rearranged once per sequence so that the tile streams them.

    keys    [length / lanes][head_dim / group][lanes] groups:   a transpose in blocks of
            lanes x lanes groups, so that one load is the same dims of `lanes` keys
    values  [head_dim / (2 lanes)][length / group][2][lanes] groups:   the same column of `group`
            consecutive keys side by side, so that a group of weights multiplies them

Both are padded to a multiple of `lanes` keys with copies of the last one: finite if the
sequence is, never read from a neighbour.
"""

from __future__ import annotations

from typing import Any

from hedgerow_engine.native.ir import Function, Kernel, Unit
from hedgerow_engine.native.values import I32, ir


def pack_keys(unit: Unit, head_dim: int) -> Function:
    """Pointers source, target; integers length, bytes from row to row of the source."""
    return unit.once("pack_keys", lambda: _pack_keys(unit, head_dim))


def _pack_keys(unit: Unit, head_dim: int) -> Function:
    rung = unit.rung
    k = unit.kernel("pack_keys", ptrs=2, ints=2)
    source, target = k.ptrs
    length, step = k.ints
    chunks = head_dim * rung.act_bytes // rung.vector_bytes
    with k.loop(0, length, rung.lanes) as first:
        rows = [(first.index + i).at_most(length - 1) * step for i in range(rung.lanes)]
        block = target + first.index * (head_dim * rung.act_bytes)
        for chunk in range(chunks):
            at = chunk * rung.vector_bytes
            vectors = [k.b.load((source + row + at).v, typ=k.int_vector, align=4) for row in rows]
            for i, vector in enumerate(transpose(k, vectors)):
                place = block + (chunk * rung.lanes + i) * rung.vector_bytes
                k.b.store(vector, place.v, align=4)
    return k.done()


def transpose(k: Kernel, rows: list[Any]) -> list[Any]:
    """`lanes` vectors of 32-bit numbers, transposed in log2(lanes) rounds of two-input shuffles:
    in the round of distance d, rows i and i + d exchange their lanes of distance d."""
    lanes = len(rows)
    distance = 1
    while distance < lanes:
        low = [x if not x & distance else lanes + x - distance for x in range(lanes)]
        high = [x + distance if not x & distance else lanes + x for x in range(lanes)]
        for i in range(lanes):
            if not i & distance:
                a, b = rows[i], rows[i + distance]
                rows[i] = shuffle(k, a, b, low)
                rows[i + distance] = shuffle(k, a, b, high)
        distance *= 2
    return rows


def shuffle(k: Kernel, a: Any, b: Any, lanes: list[int]) -> Any:
    """Lanes of a (numbered from 0) and b (numbered after a's), in the given order."""
    mask = ir.Constant(ir.VectorType(I32, len(lanes)), [I32(lane) for lane in lanes])
    return k.b.shuffle_vector(a, b, mask)


def pack_values(unit: Unit, head_dim: int) -> Function:
    """Pointers source, target; integers length, bytes from row to row of the source."""
    return unit.once("pack_values", lambda: _pack_values(unit, head_dim))


def _pack_values(unit: Unit, head_dim: int) -> Function:
    rung = unit.rung
    k = unit.kernel("pack_values", ptrs=2, ints=2)
    source, target = k.ptrs
    length, step = k.ints
    padded = length.up_to(rung.lanes)
    chunk_bytes, half_bytes = 2 * rung.lanes * rung.act_bytes, rung.lanes * rung.act_bytes
    order = [lane for i in range(rung.lanes) for lane in (i, rung.lanes + i)]
    with k.loop(0, padded, rung.group) as key:
        rows = [(key.index + i).at_most(length - 1) * step for i in range(rung.group)]
        for chunk in range(head_dim // (2 * rung.lanes)):
            place = target + padded * (chunk * chunk_bytes) + key.index * chunk_bytes
            for half in range(2):
                here = source + (chunk * chunk_bytes + half * half_bytes)
                group = [
                    k.b.load((here + row).v, typ=k.act_vector, align=rung.act_bytes) for row in rows
                ]
                mixed = group[0] if rung.group == 1 else shuffle(k, group[0], group[1], order)
                k.b.store(mixed, (place + half * rung.vector_bytes).v, align=4)
    return k.done()
