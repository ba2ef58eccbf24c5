"""Functions and their control flow: calls, loops, conditions, a jump by number."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

from llvmlite import ir

from hedgerow_engine.native.values import I64, Bool, Int, Loop, Ptr, Real


class Function:
    """A finished kernel; calling it inside another kernel emits the call."""

    def __init__(self, raw: ir.Function) -> None:
        self.raw = raw

    def __call__(self, k: Flow, ptrs: Sequence[Ptr], ints: Sequence[Int | int] = ()) -> None:
        k.b.call(self.raw, [*(p.v for p in ptrs), *(k.int(i).v for i in ints)])


class Flow:
    """A function being written. Instructions go to the end of the current block."""

    def __init__(self, function: ir.Function, num_ptrs: int) -> None:
        self.function = function
        self.b = ir.IRBuilder(function.append_basic_block())
        self.ptrs = [Ptr(self.b, a) for a in function.args[:num_ptrs]]
        self.ints = [Int(self.b, a) for a in function.args[num_ptrs:]]

    def done(self) -> Function:
        self.b.ret_void()
        return Function(self.function)

    def int(self, value: Int | int) -> Int:
        return value if isinstance(value, Int) else Int(self.b, I64(value))

    def choose(self, condition: Bool, yes: Any, no: Any) -> Any:
        """`yes` or `no`, two values of one class."""
        return type(yes)(self.b, self.b.select(condition.v, yes.v, no.v))

    @contextmanager
    def loop(
        self, start: Int | int, stop: Int | int, step: int = 1, carry: Sequence[Real] = ()
    ) -> Generator[Loop]:
        """`for index in range(start, stop, step)`; carried values stay in registers."""
        first, last, before = self.int(start), self.int(stop), self.b.block
        head, body, after = (self.function.append_basic_block() for _ in range(3))
        self.b.branch(head)
        self.b.position_at_end(head)
        index = self.b.phi(I64)
        index.add_incoming(first.v, before)
        phis = [self.b.phi(value.v.type) for value in carry]
        for phi, value in zip(phis, carry, strict=True):
            phi.add_incoming(value.v, before)
        self.b.cbranch(self.b.icmp_signed("<", index, last.v), body, after)
        self.b.position_at_end(body)
        loop = Loop(Int(self.b, index), [Real(self.b, phi) for phi in phis])
        yield loop
        index.add_incoming((loop.index + step).v, self.b.block)
        for phi, value in zip(phis, loop.next, strict=True):
            phi.add_incoming(value.v, self.b.block)
        self.b.branch(head)
        self.b.position_at_end(after)

    @contextmanager
    def when(self, condition: Bool) -> Generator[None]:
        """`if condition:`"""
        with self.b.if_then(condition.v):
            yield

    def dispatch(
        self, n: Int, functions: Sequence[Function], ptrs: Sequence[Ptr], ints: Sequence[Int | int]
    ) -> None:
        """Call functions[n - 1]; n runs from 1 to their number."""
        blocks = [self.function.append_basic_block() for _ in functions]
        after = self.function.append_basic_block()
        switch = self.b.switch(n.v, blocks[-1])
        for i, (block, function) in enumerate(zip(blocks, functions, strict=True)):
            if i + 1 < len(functions):
                switch.add_case(I64(i + 1), block)
            self.b.position_at_end(block)
            function(self, ptrs, ints)
            self.b.branch(after)
        self.b.position_at_end(after)
