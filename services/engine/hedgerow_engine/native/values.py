"""The values kernels compute with: thin wrappers that give LLVM values Python's operators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from llvmlite import ir


class BFloatType(ir.Type):
    """bfloat16, which llvmlite's IR layer lacks; LLVM has it. Only its name is ever printed."""

    def _to_string(self) -> str:
        return "bfloat"


I8, I16, I32, I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
F16, F32, BFLOAT = ir.HalfType(), ir.FloatType(), BFloatType()
PTR, VOID = ir.PointerType(), ir.VoidType()


def constant_vector(kind: Any, value: float) -> ir.Constant:
    """`value`, rounded to float32, as a scalar or in every lane of a vector type."""
    rounded = float(np.float32(value))
    if isinstance(kind, ir.VectorType):
        return ir.Constant(kind, [ir.Constant(kind.element, rounded)] * kind.count)
    return ir.Constant(kind, rounded)


@dataclass(frozen=True, slots=True)
class Operand:
    """A vector of groups of four bytes on its way into a multiply."""

    v: Any


class Bool:
    """One bit, or one per lane."""

    __slots__ = ("b", "v")

    def __init__(self, b: ir.IRBuilder, v: Any) -> None:
        self.b, self.v = b, v

    def __and__(self, other: Bool) -> Bool:
        return Bool(self.b, self.b.and_(self.v, other.v))

    def __or__(self, other: Bool) -> Bool:
        return Bool(self.b, self.b.or_(self.v, other.v))

    def __invert__(self) -> Bool:
        return Bool(self.b, self.b.not_(self.v))


class Int:
    """A 64-bit integer. Division is unsigned: no kernel divides a negative number."""

    __slots__ = ("b", "v")

    def __init__(self, b: ir.IRBuilder, v: Any) -> None:
        self.b, self.v = b, v

    def _raw(self, other: Int | int) -> Any:
        return other.v if isinstance(other, Int) else I64(other)

    def __add__(self, other: Int | int) -> Int:
        return Int(self.b, self.b.add(self.v, self._raw(other)))

    def __sub__(self, other: Int | int) -> Int:
        return Int(self.b, self.b.sub(self.v, self._raw(other)))

    def __mul__(self, other: Int | int) -> Int:
        return Int(self.b, self.b.mul(self.v, self._raw(other)))

    def __floordiv__(self, other: Int | int) -> Int:
        return Int(self.b, self.b.udiv(self.v, self._raw(other)))

    __radd__ = __add__
    __rmul__ = __mul__

    def _compare(self, sign: str, other: Int | int) -> Bool:
        return Bool(self.b, self.b.icmp_signed(sign, self.v, self._raw(other)))

    def __lt__(self, other: Int | int) -> Bool:
        return self._compare("<", other)

    def __le__(self, other: Int | int) -> Bool:
        return self._compare("<=", other)

    def __gt__(self, other: Int | int) -> Bool:
        return self._compare(">", other)

    def __ge__(self, other: Int | int) -> Bool:
        return self._compare(">=", other)

    def equals(self, other: Int | int) -> Bool:
        return self._compare("==", other)

    def at_most(self, other: Int | int) -> Int:
        """min(self, other)."""
        raw = self._raw(other)
        return Int(self.b, self.b.select(self.b.icmp_signed("<", self.v, raw), self.v, raw))

    def at_least(self, other: Int | int) -> Int:
        """max(self, other)."""
        raw = self._raw(other)
        return Int(self.b, self.b.select(self.b.icmp_signed(">", self.v, raw), self.v, raw))

    def up_to(self, multiple: int) -> Int:
        """Rounded up to a multiple."""
        return (self + (multiple - 1)) // multiple * multiple

    def down_to(self, multiple: int) -> Int:
        """Rounded down to a multiple."""
        return self // multiple * multiple


class Ptr:
    """An address. Adding counts bytes."""

    __slots__ = ("b", "v")

    def __init__(self, b: ir.IRBuilder, v: Any) -> None:
        self.b, self.v = b, v

    def __add__(self, offset: Int | int) -> Ptr:
        if isinstance(offset, int) and offset == 0:
            return self
        raw = offset.v if isinstance(offset, Int) else I64(offset)
        return Ptr(self.b, self.b.gep(self.v, [raw], source_etype=I8))

    def __sub__(self, offset: Int | int) -> Ptr:
        return self + (offset * -1)

    def is_null(self) -> Bool:
        return Bool(self.b, self.b.icmp_unsigned("==", self.v, ir.Constant(PTR, None)))


class Real:
    """A float32, or a vector of them."""

    __slots__ = ("b", "v")

    def __init__(self, b: ir.IRBuilder, v: Any) -> None:
        self.b, self.v = b, v

    def like(self, value: Real | float) -> Real:
        """`value` as a Real of this one's shape."""
        if isinstance(value, Real):
            return value
        return Real(self.b, constant_vector(self.v.type, value))

    def __add__(self, other: Real | float) -> Real:
        return Real(self.b, self.b.fadd(self.v, self.like(other).v))

    def __sub__(self, other: Real | float) -> Real:
        return Real(self.b, self.b.fsub(self.v, self.like(other).v))

    def __mul__(self, other: Real | float) -> Real:
        return Real(self.b, self.b.fmul(self.v, self.like(other).v))

    def __truediv__(self, other: Real | float) -> Real:
        return Real(self.b, self.b.fdiv(self.v, self.like(other).v))

    def at_least(self, other: Real | float) -> Real:
        """The larger, lane by lane; where this one is not a number, `other`."""
        raw = self.like(other).v
        return Real(self.b, self.b.select(self.b.fcmp_ordered(">", self.v, raw), self.v, raw))

    def at_most(self, other: Real | float) -> Real:
        """The smaller, lane by lane; where this one is not a number, `other`."""
        raw = self.like(other).v
        return Real(self.b, self.b.select(self.b.fcmp_ordered("<", self.v, raw), self.v, raw))

    def is_nan(self) -> Bool:
        return Bool(self.b, self.b.fcmp_unordered("uno", self.v, self.v))

    def below(self, other: Real | float) -> Bool:
        return Bool(self.b, self.b.fcmp_ordered("<", self.v, self.like(other).v))


class Loop:
    """A counted loop being written. `values` are its carried values: inside the body those of
    this turn, after the loop the final ones."""

    def __init__(self, index: Int, values: list[Real]) -> None:
        self.index = index
        self.values = values
        self.next: Sequence[Real] = values

    def feed(self, values: Sequence[Real]) -> None:
        """What the carried values become for the next turn."""
        assert len(values) == len(self.values)
        self.next = values
