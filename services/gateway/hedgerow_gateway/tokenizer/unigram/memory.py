"""Reads and writes of plain memory inside compiled code, with no bounds and no negative indices.

numba's own indexing allows `a[-1]`, which costs a compare and a select in the middle of every
dependent load of a trie walk. `at` counts bytes; nothing needs to be aligned.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

_INT, _FLOAT = types.int64, types.float64


def _address(context: Any, builder: Any, kind: Any, value: Any, at: Any, cell: ir.Type) -> Any:
    data = context.make_array(kind)(context, builder, value).data
    start = builder.bitcast(data, ir.IntType(8).as_pointer())
    return builder.bitcast(builder.gep(start, [at]), cell.as_pointer())


def _load(cell: ir.Type, result: Any) -> Callable[..., Any]:
    def typed(typing_context: Any, memory: Any, at: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            address = _address(context, builder, signature.args[0], args[0], args[1], cell)
            value = builder.load(address, align=1)
            wide = result is _INT and cell != ir.IntType(64)
            return builder.zext(value, ir.IntType(64)) if wide else value

        return result(memory, _INT), emit

    return intrinsic(typed)


def _store(cell: ir.Type, kind: Any) -> Callable[..., Any]:
    def typed(typing_context: Any, memory: Any, at: Any, value: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            address = _address(context, builder, signature.args[0], args[0], args[1], cell)
            value = args[2]
            if kind is _INT and cell != ir.IntType(64):
                value = builder.trunc(value, cell)
            builder.store(value, address, align=1)
            return context.get_dummy_value()

        return types.void(memory, _INT, kind), emit

    return intrinsic(typed)


load_u8 = _load(ir.IntType(8), _INT)
load_u32 = _load(ir.IntType(32), _INT)
load_i64 = _load(ir.IntType(64), _INT)
load_u64 = _load(ir.IntType(64), types.uint64)
load_f64 = _load(ir.DoubleType(), _FLOAT)
store_u8 = _store(ir.IntType(8), _INT)
store_u32 = _store(ir.IntType(32), _INT)
store_i64 = _store(ir.IntType(64), _INT)
store_u64 = _store(ir.IntType(64), types.uint64)
store_f64 = _store(ir.DoubleType(), _FLOAT)


@intrinsic
def trailing_zeros(typing_context: Any, value: Any) -> Any:
    """Number of zero bits below the lowest set bit of a uint64 that is not 0."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), emit
