"""A linear in float8: one scale for each row of the input and each row of the weight.

Halves the bytes of the weights, which is what short batches wait for, and costs accuracy: the
cosine against the 16-bit model is a row of `benchmarks/gpu_check.py`. Hence behind a flag.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

FLOAT8 = torch.float8_e4m3fn
LARGEST = 448.0
_TINY = 1e-12


def by_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """x [rows, columns] as (float8 of the same shape, float32 scales [rows, 1])."""
    value = x.float()
    scale = value.abs().amax(1, keepdim=True).clamp_min(_TINY) / LARGEST
    return (value / scale).clamp(-LARGEST, LARGEST).to(FLOAT8), scale


class Fp8Weight:
    """x -> x @ W.T through `torch._scaled_mm`."""

    def __init__(self, weight: Tensor, dtype: torch.dtype) -> None:
        packed, scale = by_rows(weight)
        # The second operand must be column-major, and its scales one per column.
        self._weight, self._scale = packed.t(), scale.t().contiguous()
        self._dtype = dtype

    @staticmethod
    def fits(weight: Tensor) -> bool:
        """The product wants both sides to be multiples of 16."""
        return weight.shape[0] % 16 == 0 and weight.shape[1] % 16 == 0

    def __call__(self, x: Tensor) -> Tensor:
        rows, scale = by_rows(x)
        # A private name, as every user of float8 products has to call it.
        multiply: Any = torch._scaled_mm  # pyright: ignore
        return multiply(
            rows, self._weight, scale_a=scale, scale_b=self._scale, out_dtype=self._dtype
        )
