"""Activations of either type, for tests of native kernels."""

from __future__ import annotations

import numpy as np

from hedgerow_engine.native.packing import from_bfloat16, to_acts
from hedgerow_engine.native.rungs import Rung


def acts(values: np.ndarray, rung: Rung) -> np.ndarray:
    return to_acts(np.asarray(values, np.float32), rung)


def floats(values: np.ndarray) -> np.ndarray:
    """Activations of either type as float64."""
    wide = from_bfloat16(values) if values.dtype == np.uint16 else values
    return wide.astype(np.float64)
