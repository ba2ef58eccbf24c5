"""Packed weights against the same layout made by numpy, from every dtype of a file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from native_arrays import floats, interleave_gate, pack, to_bfloat16

from hedgerow_engine.native.compiler import Program, compile_unit
from hedgerow_engine.native.ir import Unit
from hedgerow_engine.native.packing import PACK_EXPORTS, Packer, write_packers
from hedgerow_engine.weightfile import RawTensor

_PACKERS: dict[str, tuple[Program, Packer]] = {}


def _packer(rung) -> Packer:
    if rung.name not in _PACKERS:
        unit = Unit(rung)
        write_packers(unit)
        program = Program(compile_unit(unit), PACK_EXPORTS)
        _PACKERS[rung.name] = program, Packer(program.function, rung)
    return _PACKERS[rung.name][1]


def _matrix(n: int, k: int, dtype: str, seed: int = 0) -> tuple[RawTensor, np.ndarray]:
    """A tensor as a file holds it, and its numbers."""
    numbers = np.random.default_rng(seed).normal(size=(n, k)).astype(np.float32)
    data = {"F32": numbers, "F16": numbers.astype(np.float16), "BF16": to_bfloat16(numbers)}[dtype]
    return RawTensor("w", dtype, data, Path("w")), floats(data).astype(np.float32)


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_packing_equals_numpy_byte_for_byte(rung, dtype: str) -> None:
    raw, numbers = _matrix(96, 64, dtype)
    want = pack(numbers, rung)
    target = np.zeros_like(want)
    _packer(rung).matrix(raw, np.ones(96, np.float32), target)
    assert np.array_equal(target, want)


def test_rows_are_scaled_before_they_are_rounded(rung) -> None:
    raw, numbers = _matrix(32, 32, "F32")
    scales = np.linspace(0.1, 2, 32, dtype=np.float32)
    want = pack(numbers * scales[:, None], rung)
    target = np.zeros_like(want)
    _packer(rung).matrix(raw, scales, target)
    assert np.array_equal(target, want)


@pytest.mark.parametrize("dtype", ["F32", "BF16"])
def test_a_gate_lies_beside_the_same_columns_of_its_up(rung, dtype: str) -> None:
    gate, gate_numbers = _matrix(64, 32, dtype, seed=1)
    up, up_numbers = _matrix(64, 32, dtype, seed=2)
    want = pack(interleave_gate(gate_numbers, up_numbers, rung), rung)
    target = np.zeros_like(want)
    _packer(rung).gated(gate, up, np.ones(64, np.float32), target)
    assert np.array_equal(target, want)
