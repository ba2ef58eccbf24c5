"""Activations of either type, and packed weights, in plain numpy: what kernels must match."""

from __future__ import annotations

import numpy as np

from hedgerow_engine.native.rungs import Rung


def to_bfloat16(values: np.ndarray) -> np.ndarray:
    """The nearest bfloat16 of float32 (ties to even), as its 16 bits. NaN stays NaN."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    rounded[np.isnan(values)] = 0x7FC0
    return rounded


def acts(values: np.ndarray, rung: Rung) -> np.ndarray:
    """float32 as the rung's activations."""
    values = np.ascontiguousarray(values, np.float32)
    return to_bfloat16(values) if rung.dtype == "bfloat16" else values


def floats(values: np.ndarray) -> np.ndarray:
    """Activations of either type as float64."""
    if values.dtype == np.uint16:
        values = (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float64)


def pack(weight: np.ndarray, rung: Rung) -> np.ndarray:
    """[n, k] -> [n / columns][k / group][columns][group]."""
    n, k = weight.shape
    blocks = acts(weight, rung).reshape(
        n // rung.columns, rung.columns, k // rung.group, rung.group
    )
    return np.ascontiguousarray(blocks.transpose(0, 2, 1, 3))


def interleave_gate(gate: np.ndarray, up: np.ndarray, rung: Rung) -> np.ndarray:
    """[n, k] twice -> [2 n, k]: half a block of the gate, then the same half block of `up`."""
    half = rung.columns // 2
    pairs = [m.reshape(m.shape[0] // half, 1, half, m.shape[1]) for m in (gate, up)]
    return np.concatenate(pairs, axis=1).reshape(-1, gate.shape[1])
