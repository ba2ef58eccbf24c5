"""Plain memory inside compiled code: an address is an int64, and every name says how wide it is.

Tables, scratch and text are passed as bare addresses: arrays would drag seven words each through
every call, and numba's indexing costs a compare and a select (for `a[-1]`) in the middle of
every dependent load. The caller in Python keeps the arrays alive. Nothing needs alignment.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

# numba passes the typing context by itself, which its type hints do not say.
_intrinsic: Any = intrinsic
_INT, _FLOAT = types.int64, types.float64
# What numba types as int64. A plain 0 is typed as itself and would compile another copy of the
# function it is passed to.
int64 = cast("Callable[[Any], int]", np.int64)
NO, YES = int64(0), int64(1)
_BYTE, _HALF, _WORD = ir.IntType(8), ir.IntType(32), ir.IntType(64)


def _load(cell: ir.Type, result: Any) -> Callable[[int], Any]:
    def typed(typing_context: Any, address: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            value = builder.load(builder.inttoptr(args[0], cell.as_pointer()), align=1)
            return builder.zext(value, _WORD) if cell in (_BYTE, _HALF) else value

        return result(_INT), emit

    return _intrinsic(typed)


def _store(cell: ir.Type, kind: Any) -> Callable[..., Any]:
    def typed(typing_context: Any, address: Any, value: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            value = builder.trunc(args[1], cell) if cell in (_BYTE, _HALF) else args[1]
            builder.store(value, builder.inttoptr(args[0], cell.as_pointer()), align=1)
            return context.get_dummy_value()

        return types.void(_INT, kind), emit

    return _intrinsic(typed)


load_u8 = _load(_BYTE, _INT)
load_u32 = _load(_HALF, _INT)
load_i64 = _load(_WORD, _INT)
load_u64 = _load(_WORD, types.uint64)
load_f64 = _load(ir.DoubleType(), _FLOAT)
store_u8 = _store(_BYTE, _INT)
store_u32 = _store(_HALF, _INT)
store_i64 = _store(_WORD, _INT)
store_u64 = _store(_WORD, types.uint64)
store_f64 = _store(ir.DoubleType(), _FLOAT)


def _address_of(typing_context: Any, memory: Any) -> Any:
    """Address of the first byte of an array or a bytes object."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        return builder.ptrtoint(data, _WORD)

    return _INT(memory), emit


def _trailing_zeros(typing_context: Any, value: Any) -> Any:
    """Number of zero bits below the lowest set bit of a uint64 that is not 0."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return _INT(types.uint64), emit


address_of: Callable[[Any], int] = _intrinsic(_address_of)
trailing_zeros: Callable[[Any], int] = _intrinsic(_trailing_zeros)
