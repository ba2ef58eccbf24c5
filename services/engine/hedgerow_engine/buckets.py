"""The shapes a pass is rounded up to, so that few graphs serve all batches. Pure functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

TokenBucket: TypeAlias = Callable[[int], int]

EXACT_TOKENS = 64
MAX_PADDING = 2.0


def cpu_tokens(num_tokens: int) -> int:
    """Exact to 64 tokens, then multiples of 16.

    A CPU pays for every padded row (16 -> 64 tokens costs 2.2x), but also about 4 ms for the
    first pass at a new token count, when oneDNN generates its kernels.
    """
    if num_tokens <= EXACT_TOKENS:
        return num_tokens
    return _up(num_tokens, 16)


def cuda_tokens(num_tokens: int) -> int:
    """16, 32, then multiples of 64 to 512, then of 256: a GPU hides rows inside its tiles."""
    for small in (16, 32):
        if num_tokens <= small:
            return small
    return _up(num_tokens, 64 if num_tokens <= 512 else 256)


SMALLEST_CUDA = 16


def cuda_slots(num_seqs: int, num_rows: int) -> int:
    """Powers of two that hold every sequence, a dummy one that owns the padding, and every row."""
    return slots(max(num_seqs + 1, num_rows))


def slots(num_rows: int) -> int:
    """Powers of two: places for sequences (or spans) in a graph's output."""
    return 1 << max(0, num_rows - 1).bit_length()


def too_padded(num_tokens: int, bucket: int) -> bool:
    """True when a replay would spend more than half of its rows on padding."""
    return bucket > MAX_PADDING * num_tokens


def _up(value: int, step: int) -> int:
    return -(-value // step) * step
