"""Triton source of the two poolings: rows of a slot reduced to one, alone or in all its forms.

Written like `tritons`.
"""

# pyright: basic, reportMissingImports=false, reportArgumentType=false
# ruff: noqa: ANN001, ANN201, N803

import triton
import triton.language as tl


@triton.jit
def averaged(total, length, offset, MODE: tl.constexpr):
    """A sum over `length` rows as its mode has it; the first row is at place `offset`."""
    if MODE == "mean":
        return total / tl.maximum(length, 1.0)
    if MODE == "mean_sqrt_len":
        return total / tl.sqrt(tl.maximum(length, 1.0))
    if MODE == "weightedmean":
        return total / tl.maximum(length * ((length + 1.0) * 0.5 + offset), 1.0)
    return total


@triton.jit
def rounded(unit):
    """A row as int8, its largest number at 127."""
    peak = tl.max(tl.abs(unit), axis=0)
    scaled = unit * (127.0 / tl.maximum(peak, 1e-12))
    # Adding and taking away 1.5 * 2^23 rounds half to even, as the host does.
    return ((scaled + 12582912.0) - 12582912.0).to(tl.int8)


@triton.jit
def larger(a, b):
    """tl.max would pass over a number that is not finite, and nobody would hear of it."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def reduced(
    x_ptr,
    starts_ptr,
    ends_ptr,
    positions_ptr,
    slot,
    at,
    mask,
    x_stride,
    MODE: tl.constexpr,
    PLACED: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The columns `at` of one slot's rows reduced to one float32 row; zero for an empty slot."""
    start = tl.load(starts_ptr + slot)
    end = tl.load(ends_ptr + slot)
    if MODE == "max":
        total = tl.full((BLOCK,), float("-inf"), tl.float32)
    else:
        total = tl.zeros((BLOCK,), tl.float32)
    first, last = start, end
    # The place in its sequence of the first row: a prompt before it keeps its weights.
    offset = start * 0
    if PLACED:
        offset = tl.load(positions_ptr + start, mask=end > start, other=0)
    if MODE == "cls":
        last = tl.minimum(end, start + 1)
    if MODE == "lasttoken":
        first = tl.maximum(start, end - 1)
    for begin in range(first, last, ROWS):
        row = begin + tl.arange(0, ROWS)
        inside = (row < last)[:, None] & mask[None, :]
        place = x_ptr + row.to(tl.int64)[:, None] * x_stride + at[None, :]
        if MODE == "max":
            tile = tl.load(place, mask=inside, other=float("-inf")).to(tl.float32)
            total = larger(total, tl.reduce(tile, 0, larger))
        else:
            tile = tl.load(place, mask=inside, other=0.0).to(tl.float32)
            if MODE == "weightedmean":
                tile = tile * (row - start + offset + 1).to(tl.float32)[:, None]
            total += tl.sum(tile, axis=0)
    total = averaged(total, (end - start).to(tl.float32), offset.to(tl.float32), MODE)
    return tl.where(mask & (end > start), total, 0.0)


@triton.jit
def reduce(
    x_ptr,
    starts_ptr,
    ends_ptr,
    positions_ptr,
    out_ptr,
    width,
    x_stride,
    MODE: tl.constexpr,
    PLACED: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program per slot and block of columns."""
    slot = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = at < width
    total = reduced(
        x_ptr, starts_ptr, ends_ptr, positions_ptr, slot, at, mask, x_stride,
        MODE, PLACED, ROWS, BLOCK,
    )  # fmt: skip
    tl.store(out_ptr + slot * width + at, total, mask=mask)


@triton.jit
def pool(
    x_ptr,
    starts_ptr,
    ends_ptr,
    positions_ptr,
    pooled_ptr,
    unit_ptr,
    int8_ptr,
    bits_ptr,
    width,
    x_stride,
    bit_bytes,
    MODE: tl.constexpr,
    PLACED: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program per slot: reduce its rows, scale to length 1, round to int8, pack the signs."""
    slot = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    mask = at < width
    total = reduced(
        x_ptr, starts_ptr, ends_ptr, positions_ptr, slot, at, mask, x_stride,
        MODE, PLACED, ROWS, BLOCK,
    )  # fmt: skip
    norm = tl.sqrt(tl.sum(total * total, axis=0))
    unit = total / tl.maximum(norm, 1e-12)
    tl.store(pooled_ptr + slot * width + at, total, mask=mask)
    tl.store(unit_ptr + slot * width + at, unit, mask=mask)
    tl.store(int8_ptr + slot * width + at, rounded(unit), mask=mask)
    weight = (128 >> (at % 8)).to(tl.int32)
    signs = tl.where(total > 0.0, weight, 0)
    packed = tl.sum(tl.reshape(signs, (BLOCK // 8, 8)), axis=1)
    byte = tl.arange(0, BLOCK // 8)
    tl.store(bits_ptr + slot * bit_bytes + byte, packed.to(tl.uint8), mask=byte < bit_bytes)
