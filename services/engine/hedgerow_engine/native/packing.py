"""Weights from their file's layout to the one the kernels stream, by a kernel of their own.

    file    [n][k], float32, float16 or bfloat16, row-major
    packed  [n / columns][k / group][vectors][lanes] groups of four bytes: within a block of
            `columns` output columns, each step along k is `vectors` registers, read in order

A register of the packed form holds the same group of k of `lanes` rows of the file: packing is
a transpose of 4-byte groups, the one attention uses for its keys. Rows are multiplied with a
number of their own on the way (the softmax scale of queries), then rounded once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hedgerow_engine.native.attention_pack import transpose
from hedgerow_engine.native.embed import IR_TYPES, TableKind
from hedgerow_engine.native.ir import Function, Kernel, Ptr, Real, Unit
from hedgerow_engine.native.memory import Bytes, address
from hedgerow_engine.native.rungs import Rung
from hedgerow_engine.weightfile import RawTensor

PACK_EXPORTS = tuple(f"pack_{kind}" for kind in IR_TYPES)


def write_packers(unit: Unit) -> None:
    """Export pack_F32, pack_F16 and pack_BF16: pointers source, scales, target; integers k, the
    bytes from row to row of the source and from group to group of the target. Each packs `lanes`
    rows into one register column of a block; scales: float32 [lanes]."""
    for kind in IR_TYPES:
        _write_packer(unit, kind)


def _write_packer(unit: Unit, kind: TableKind) -> Function:
    rung = unit.rung
    k = unit.kernel(f"pack_{kind}", ptrs=3, ints=3, export=True)
    source, scales, target = k.ptrs
    depth, row_step, group_step = k.ints
    rows = [source + row_step * i for i in range(rung.lanes)]
    factors = [k.splat(k.load_scalar(scales + 4 * i)) for i in range(rung.lanes)]
    numbers = rung.lanes * rung.group
    with k.loop(0, depth, numbers) as loop:
        at = loop.index * IR_TYPES[kind][1]
        groups = [_groups(k, row + at, kind, factor) for row, factor in zip(rows, factors)]
        for i, register in enumerate(transpose(k, groups)):
            place = target + (loop.index // rung.group + i) * group_step
            k.b.store(register, place.v, align=4)
    return k.done()


def _groups(k: Kernel, row: Ptr, kind: TableKind, factor: Real) -> Any:
    """`lanes` groups of one row as 32-bit lanes."""
    element, item_bytes = IR_TYPES[kind]
    parts = [
        k.load_as(row + i * k.rung.lanes * item_bytes, element) * factor
        for i in range(k.rung.group)
    ]
    raw = k.narrow(parts).v
    return k.b.bitcast(raw, k.int_vector)


class Packer:
    """Packs matrices with the packers of a loaded program."""

    def __init__(self, function: Callable[[str, int], Callable[..., Any]], rung: Rung) -> None:
        self._pack = {kind: function(f"pack_{kind}", 6) for kind in IR_TYPES}
        self._rung = rung

    def matrix(self, raw: RawTensor, scales: Bytes, target: Bytes) -> None:
        """[n, k] into a target of as many numbers; scales: float32 [n]."""
        self._columns(raw, scales, target, range(raw.shape[0] // self._rung.lanes))

    def gated(self, gate: RawTensor, up: RawTensor, scales: Bytes, target: Bytes) -> None:
        """Two matrices as one of twice the rows: of each block's registers the first half is
        the gate, the second half the same columns of `up`."""
        half = self._rung.vectors // 2
        count = gate.shape[0] // self._rung.lanes
        places = [i // half * self._rung.vectors + i % half for i in range(count)]
        self._columns(gate, scales, target, places)
        self._columns(up, scales, target, [place + half for place in places])

    def _columns(self, raw: RawTensor, scales: Bytes, target: Bytes, places: Any) -> None:
        """Register column i of the matrix to register column places[i] of the target."""
        rung, (_, k) = self._rung, raw.shape
        if raw.dtype not in self._pack:
            raw = RawTensor(raw.name, "F32", raw.float32(), raw.file)
        assert raw.data.flags.c_contiguous and k % (rung.lanes * rung.group) == 0
        pack, row_step = self._pack[raw.dtype], k * raw.data.itemsize
        source, scale, base = address(raw.data), address(scales), address(target)
        group_step = rung.vectors * rung.vector_bytes
        block_bytes = k // rung.group * group_step
        for i, place in enumerate(places):
            block, vector = divmod(place, rung.vectors)
            pack(
                source + i * rung.lanes * row_step,
                scale + i * rung.lanes * 4,
                base + block * block_bytes + vector * rung.vector_bytes,
                k,
                row_step,
                group_step,
            )
