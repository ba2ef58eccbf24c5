"""Weights from their file's layout to the one the kernels stream.

A packed matrix is [n / columns][k / group][vectors][lanes][group]: within a block of `columns`
output columns, each step along k is `vectors` registers of `lanes` groups, read in order.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from hedgerow_engine.native.rungs import Rung

Floats = npt.NDArray[np.float32]
Packed = npt.NDArray[Any]


def to_bfloat16(values: Floats) -> npt.NDArray[np.uint16]:
    """Round float32 to the nearest bfloat16 (ties to even), as its 16 bits. NaN stays NaN."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    rounded[np.isnan(values)] = 0x7FC0
    return rounded


def from_bfloat16(bits: npt.NDArray[np.uint16]) -> Floats:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def to_acts(values: Floats, rung: Rung) -> Packed:
    """float32 as the rung's activations: uint16 bit patterns, or float32 itself."""
    if rung.dtype == "bfloat16":
        return to_bfloat16(values)
    return np.ascontiguousarray(values, np.float32)


def pack(weight: Floats, rung: Rung, out: Packed | None = None) -> Packed:
    """[n, k] -> the packed layout; n must be a multiple of `columns`, k of `group`.

    out: as many bytes as the result, to write it there; else a new array.
    """
    n, k = weight.shape
    assert n % rung.columns == 0 and k % rung.group == 0, (n, k, rung.name)
    acts = to_acts(weight, rung)
    blocks = acts.reshape(n // rung.columns, rung.columns, k // rung.group, rung.group)
    packed = blocks.transpose(0, 2, 1, 3)
    if out is None:
        return np.ascontiguousarray(packed)
    target = out.view(acts.dtype).reshape(packed.shape)
    target[:] = packed
    return target


def interleave_gate(gate: Floats, up: Floats, rung: Rung) -> Floats:
    """Two matrices (or biases) of n rows as one of 2n: each block of `columns` rows is half a
    block of the gate, then the same half block of `up`."""
    half = rung.columns // 2
    pairs = [m.reshape(m.shape[0] // half, 1, half, *m.shape[1:]) for m in (gate, up)]
    return np.concatenate(pairs, axis=1).reshape(-1, *gate.shape[1:])
