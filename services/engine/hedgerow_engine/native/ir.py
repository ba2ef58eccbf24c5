"""A small language for writing kernels: Python expressions that become LLVM instructions.

`Int`, `Bool`, `Ptr` and `Real` wrap LLVM values so that a kernel reads like arithmetic:
`row = base + index * stride` emits a multiply and an address computation. `Kernel` is one
function being written; `Unit` is the module all kernels of a program live in.

    k = unit.kernel("scale", ptrs=2, ints=1)
    source, target = k.ptrs
    with k.loop(0, k.ints[0]) as loop:
        here = loop.index * 64
        k.store(k.load(source + here) * 2.0, target + here)
    scale = k.done()

Offsets are bytes. Vectors have the width of the unit's rung. There is no aliasing magic and no
automatic vectorising: what is written is what runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir

from hedgerow_engine.native.flow import Flow, Function
from hedgerow_engine.native.rungs import Rung
from hedgerow_engine.native.values import (
    BFLOAT,
    F32,
    I32,
    I64,
    PTR,
    VOID,
    Bool,
    Int,
    Loop,
    Operand,
    Ptr,
    Real,
    constant_vector,
)

__all__ = ["Bool", "Function", "Int", "Kernel", "Loop", "Operand", "Ptr", "Real", "Unit"]


class Unit:
    """One LLVM module, written for one rung. Each kernel is written once, by its name."""

    def __init__(self, rung: Rung) -> None:
        self.rung = rung
        self.module = ir.Module("hedgerow")
        self._written: dict[str, Function] = {}

    def kernel(self, name: str, *, ptrs: int = 0, ints: int = 0, export: bool = False) -> Kernel:
        """Begin a function of so many pointers, then so many 64-bit integers; no result."""
        kind = ir.FunctionType(VOID, [PTR] * ptrs + [I64] * ints)
        function = ir.Function(self.module, kind, name)
        function.linkage = "" if export else "internal"
        function.attributes.add("nounwind")
        if not export:
            function.attributes.add("noinline")
        return Kernel(self, function, ptrs)

    def once(self, name: str, write: Callable[[], Function]) -> Function:
        """The function `name`, written at its first use."""
        if name not in self._written:
            self._written[name] = write()
        return self._written[name]

    def external(self, name: str, result: ir.Type, params: Sequence[ir.Type]) -> ir.Function:
        """An LLVM intrinsic or a C library function."""
        known = self.module.globals.get(name)
        if isinstance(known, ir.Function):
            return known
        return ir.Function(self.module, ir.FunctionType(result, list(params)), name)

    def __str__(self) -> str:
        return str(self.module)


class Kernel(Flow):
    """A function being written for one rung: memory and vectors, beside `Flow`'s control."""

    def __init__(self, unit: Unit, function: ir.Function, num_ptrs: int) -> None:
        super().__init__(function, num_ptrs)
        self.unit, self.rung = unit, unit.rung
        # Longer polynomials than the rung's rounding asks for: set where rows are few.
        self.precise = self.rung.dtype == "float32"
        lanes = self.rung.lanes
        self.vector = ir.VectorType(F32, lanes)
        self.int_vector = ir.VectorType(I32, lanes)
        act = BFLOAT if self.rung.dtype == "bfloat16" else F32
        self.act_vector = ir.VectorType(act, lanes)
        self.operand = ir.VectorType(act, lanes * self.rung.group)

    # Constants -----------------------------------------------------------------------------

    def real(self, value: float) -> Real:
        """The same number in every lane."""
        return Real(self.b, constant_vector(self.vector, value))

    def scalar(self, value: float) -> Real:
        return Real(self.b, constant_vector(F32, value))

    def to_real(self, value: Int) -> Real:
        """A number of tokens as a float32 scalar."""
        return Real(self.b, self.b.sitofp(value.v, F32))

    def null(self) -> Ptr:
        return Ptr(self.b, ir.Constant(PTR, None))

    # Memory --------------------------------------------------------------------------------

    def load(self, p: Ptr) -> Real:
        """A vector of float32."""
        return Real(self.b, self.b.load(p.v, typ=self.vector, align=4))

    def store(self, value: Real, p: Ptr) -> None:
        self.b.store(value.v, p.v, align=4)

    def load_as(self, p: Ptr, kind: ir.Type) -> Real:
        """A vector of `kind` (float, half, bfloat), widened to float32."""
        raw = self.b.load(p.v, typ=ir.VectorType(kind, self.rung.lanes), align=2)
        return Real(self.b, raw if kind is F32 else self.b.fpext(raw, self.vector))

    def load_act(self, p: Ptr) -> Real:
        """A vector of activations, widened to float32."""
        return self.load_as(p, self.act_vector.element)

    def store_act(self, value: Real, p: Ptr) -> None:
        """Round a float32 vector to the rung's type and store it."""
        narrow = self.rung.dtype == "bfloat16"
        raw = self.b.fptrunc(value.v, self.act_vector) if narrow else value.v
        self.b.store(raw, p.v, align=self.rung.act_bytes)

    def narrow(self, values: Sequence[Real]) -> Operand:
        """`group` vectors of float32, rounded and one after the other."""
        if self.rung.group == 1:
            return Operand(values[0].v)
        low, high = values
        if self.rung.name == "avx512bf16":
            name = "llvm.x86.avx512bf16.cvtne2ps2bf16.512"
            function = self.unit.external(name, self.operand, [self.vector, self.vector])
            return Operand(self.b.call(function, [high.v, low.v]))
        both = ir.VectorType(I32, 2 * self.rung.lanes)
        order = ir.Constant(both, [I32(lane) for lane in range(both.count)])
        wide = self.b.shuffle_vector(low.v, high.v, order)
        return Operand(self.b.fptrunc(wide, self.operand))

    def store_operand(self, value: Operand, p: Ptr) -> None:
        self.b.store(value.v, p.v, align=self.rung.act_bytes)

    def ones(self) -> Operand:
        """1 in both numbers of every pair."""
        bits = ir.Constant(self.int_vector, [I32(0x3F803F80)] * self.rung.lanes)
        return Operand(self.b.bitcast(bits, self.operand))

    def load_scalar(self, p: Ptr) -> Real:
        return Real(self.b, self.b.load(p.v, typ=F32, align=4))

    def load_operand(self, p: Ptr) -> Operand:
        """`lanes` groups of four bytes, ready to be multiplied."""
        return Operand(self.b.load(p.v, typ=self.operand, align=4))

    def spread_group(self, p: Ptr) -> Operand:
        """One group of four bytes, copied to every lane."""
        raw = self.splat_raw(self.b.load(p.v, typ=I32, align=4), self.int_vector)
        return Operand(self.b.bitcast(raw, self.operand))

    def load_int(self, p: Ptr) -> Int:
        return Int(self.b, self.b.load(p.v, typ=I64, align=8))

    def load_int32(self, p: Ptr) -> Int:
        return Int(self.b, self.b.sext(self.b.load(p.v, typ=I32, align=4), I64))

    def load_ptr(self, p: Ptr) -> Ptr:
        return Ptr(self.b, self.b.load(p.v, typ=PTR, align=8))

    def store_int(self, value: Int | int, p: Ptr) -> None:
        self.b.store(self.int(value).v, p.v, align=8)

    def store_int32(self, value: Int, p: Ptr) -> None:
        self.b.store(self.b.trunc(value.v, I32), p.v, align=4)

    def store_scalar(self, value: Real, p: Ptr) -> None:
        self.b.store(value.v, p.v, align=4)

    # Vectors -------------------------------------------------------------------------------

    def splat(self, value: Real) -> Real:
        """A scalar in every lane."""
        return Real(self.b, self.splat_raw(value.v, self.vector))

    def splat_raw(self, value: Any, kind: ir.VectorType) -> Any:
        undefined = ir.Constant(kind, ir.Undefined)
        first = self.b.insert_element(undefined, value, I32(0))
        zeros = ir.Constant(ir.VectorType(I32, kind.count), [I32(0)] * kind.count)
        return self.b.shuffle_vector(first, undefined, zeros)

    def dot(self, total: Real, a: Operand, b: Operand) -> Real:
        """total + a * b in every lane, summed over the numbers of a group."""
        name, lanes = self.rung.name, self.rung.lanes
        if self.rung.group == 1:
            return self.fma(Real(self.b, a.v), Real(self.b, b.v), total)
        intrinsic = {
            "avx512bf16": "llvm.x86.avx512bf16.dpbf16ps.512",
            "neonbf16": f"llvm.aarch64.neon.bfdot.v{lanes}f32.v{2 * lanes}bf16",
        }[name]
        params = [self.vector, self.operand, self.operand]
        function = self.unit.external(intrinsic, self.vector, params)
        return Real(self.b, self.b.call(function, [total.v, a.v, b.v]))

    def fma(self, a: Real, b: Real | float, c: Real | float) -> Real:
        """a * b + c, rounded once."""
        kind = a.v.type
        suffix = f"v{kind.count}f32" if isinstance(kind, ir.VectorType) else "f32"
        function = self.unit.external(f"llvm.fma.{suffix}", kind, [kind] * 3)
        args = [a.v, a.like(b).v, a.like(c).v]
        return Real(self.b, self.b.call(function, args))

    def unary(self, name: str, a: Real) -> Real:
        """An LLVM intrinsic of one float argument: "sqrt", "floor", "fabs"."""
        kind = a.v.type
        suffix = f"v{kind.count}f32" if isinstance(kind, ir.VectorType) else "f32"
        function = self.unit.external(f"llvm.{name}.{suffix}", kind, [kind])
        return Real(self.b, self.b.call(function, [a.v]))

    def sum(self, a: Real) -> Real:
        """The sum of all lanes; its order is fixed when the program is compiled."""
        function = self.unit.external(
            f"llvm.vector.reduce.fadd.v{self.rung.lanes}f32", F32, [F32, self.vector]
        )
        zero = constant_vector(F32, 0.0)
        return Real(self.b, self.b.call(function, [zero, a.v], fastmath=("reassoc",)))

    def largest(self, a: Real) -> Real:
        """The largest lane."""
        function = self.unit.external(
            f"llvm.vector.reduce.fmax.v{self.rung.lanes}f32", F32, [self.vector]
        )
        return Real(self.b, self.b.call(function, [a.v], fastmath=("nnan",)))
