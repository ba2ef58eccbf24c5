"""What happens to a register tile when its sums are complete, before it is stored.

An epilogue gets one row of the tile (`vectors` registers of float32, bias already inside) and
the addresses of that row in the output `c` and, where it has one, in the residual `r`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hedgerow_engine.native.approx import ACTIVATIONS
from hedgerow_engine.native.ir import Kernel, Ptr, Real
from hedgerow_engine.native.rungs import Rung

Emit = Callable[[Kernel, list[Real], Ptr, Ptr], None]


@dataclass(frozen=True, slots=True)
class Epilogue:
    """name: part of the kernels' names. step_bytes: how far a column block advances in `c`."""

    name: str
    step_bytes: Callable[[Rung], int]
    emit: Emit


def store() -> Epilogue:
    """c = acts(sums)"""

    def emit(k: Kernel, sums: list[Real], c: Ptr, r: Ptr) -> None:
        for i, value in enumerate(sums):
            k.store_act(value, c + i * k.rung.lanes * k.rung.act_bytes)

    return Epilogue("store", lambda rung: rung.columns * rung.act_bytes, emit)


def activate(name: str) -> Epilogue:
    """c = acts(f(sums))"""
    function = ACTIVATIONS[name]

    def emit(k: Kernel, sums: list[Real], c: Ptr, r: Ptr) -> None:
        for i, value in enumerate(sums):
            k.store_act(function(k, value), c + i * k.rung.lanes * k.rung.act_bytes)

    return Epilogue(name, lambda rung: rung.columns * rung.act_bytes, emit)


def gate(name: str) -> Epilogue:
    """c = acts(f(gate) * up): the first half of a block's vectors is the gate, the second half
    the same columns of `up` (see `packing.Packer.gated`), so `c` has half the columns."""
    function = ACTIVATIONS[name]

    def emit(k: Kernel, sums: list[Real], c: Ptr, r: Ptr) -> None:
        half = len(sums) // 2
        for i, (gated, up) in enumerate(zip(sums[:half], sums[half:], strict=True)):
            k.store_act(function(k, gated) * up, c + i * k.rung.lanes * k.rung.act_bytes)

    return Epilogue(f"gate_{name}", lambda rung: rung.columns * rung.act_bytes // 2, emit)


def store_wide() -> Epilogue:
    """c = sums, float32"""

    def emit(k: Kernel, sums: list[Real], c: Ptr, r: Ptr) -> None:
        for i, value in enumerate(sums):
            k.store(value, c + i * k.rung.vector_bytes)

    return Epilogue("wide", lambda rung: rung.columns * 4, emit)


def add_residual() -> Epilogue:
    """c = sums + r, both float32; `c` may be `r` itself."""

    def emit(k: Kernel, sums: list[Real], c: Ptr, r: Ptr) -> None:
        for i, value in enumerate(sums):
            k.store(value + k.load(r + i * k.rung.vector_bytes), c + i * k.rung.vector_bytes)

    return Epilogue("residual", lambda rung: rung.columns * 4, emit)
