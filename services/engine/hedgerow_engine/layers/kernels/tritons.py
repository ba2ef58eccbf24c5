"""Triton source of the fused kernels. One program per row, slot or token; see `fused` for shapes.

Written to what Triton 3.6 and newer share. Block sizes are fixed, because autotuning would
benchmark while serving. Everything is computed in float32; masks guard odd widths.
"""

# pyright: basic, reportMissingImports=false, reportArgumentType=false
# ruff: noqa: ANN001, ANN201, N803

import os

# Triton 3.10 changes this default; sums of products keep being fused whatever it is.
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")

import triton
import triton.language as tl


@triton.jit
def activated(x, ACT: tl.constexpr):
    """One of the activations, by name."""
    if ACT == "gelu":
        return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    if ACT == "gelu_tanh":
        inner = 0.7978845608028654 * (x + 0.044715 * x * x * x)
        return x * tl.sigmoid(2.0 * inner)
    if ACT == "silu":
        return x * tl.sigmoid(x)
    if ACT == "relu":
        return tl.maximum(x, 0.0)
    if ACT == "tanh":
        return 2.0 * tl.sigmoid(2.0 * x) - 1.0
    return tl.sigmoid(x)


@triton.jit
def row_normed(
    x, mask, weight_ptr, shift_ptr, at, width, eps, RMS: tl.constexpr, SHIFT: tl.constexpr
):
    """A row in float32, normed, scaled and shifted."""
    if RMS:
        square = tl.sum(x * x, axis=0) / width
        out = x * (1.0 / tl.sqrt(square + eps))
    else:
        mean = tl.sum(x, axis=0) / width
        centred = tl.where(mask, x - mean, 0.0)
        variance = tl.sum(centred * centred, axis=0) / width
        out = centred * (1.0 / tl.sqrt(variance + eps))
    out = out * tl.load(weight_ptr + at, mask=mask, other=0.0)
    if SHIFT:
        out = out + tl.load(shift_ptr + at, mask=mask, other=0.0)
    return out


@triton.jit
def add_norm(
    x_ptr,
    bias_ptr,
    residual_ptr,
    weight_ptr,
    shift_ptr,
    normed_ptr,
    total_ptr,
    width,
    x_stride,
    residual_stride,
    eps,
    BIAS: tl.constexpr,
    RESIDUAL: tl.constexpr,
    SHIFT: tl.constexpr,
    TOTAL: tl.constexpr,
    RMS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """total = x + bias + residual; normed = norm(total). One program per row."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    mask = at < width
    total = tl.load(x_ptr + row * x_stride + at, mask=mask, other=0.0).to(tl.float32)
    if BIAS:
        total += tl.load(bias_ptr + at, mask=mask, other=0.0)
    if RESIDUAL:
        more = tl.load(residual_ptr + row * residual_stride + at, mask=mask, other=0.0)
        total += more.to(tl.float32)
    if TOTAL:
        tl.store(total_ptr + row * width + at, total.to(total_ptr.dtype.element_ty), mask=mask)
    out = row_normed(total, mask, weight_ptr, shift_ptr, at, width, eps, RMS, SHIFT)
    tl.store(normed_ptr + row * width + at, out.to(normed_ptr.dtype.element_ty), mask=mask)


@triton.jit
def bias_activation(
    x_ptr,
    bias_ptr,
    out_ptr,
    count,
    width,
    BIAS: tl.constexpr,
    ACT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """out = activation(x + bias) over a flat contiguous x."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = at < count
    value = tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32)
    if BIAS:
        value += tl.load(bias_ptr + at % width, mask=mask, other=0.0)
    tl.store(out_ptr + at, activated(value, ACT).to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def gated(x_ptr, out_ptr, width, ACT: tl.constexpr, BLOCK: tl.constexpr):
    """out = activation(x[:, :width]) * x[:, width:]. Programs: (row, column block)."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = at < width
    gate = tl.load(x_ptr + row * 2 * width + at, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(x_ptr + row * 2 * width + width + at, mask=mask, other=0.0).to(tl.float32)
    out = activated(gate, ACT) * up
    tl.store(out_ptr + row * width + at, out.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def norm_rope(
    x_ptr,
    cos_ptr,
    sin_ptr,
    weight_ptr,
    out_ptr,
    heads,
    half,
    token_stride,
    head_stride,
    eps,
    NORM: tl.constexpr,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
):
    """All heads of one token: RMS norm of each, then rotation of its two halves."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.arange(0, HEADS)[:, None]
    at = tl.arange(0, HALF)[None, :]
    mask = (head < heads) & (at < half)
    base = x_ptr + token * token_stride + head * head_stride + at
    first = tl.load(base, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(base + half, mask=mask, other=0.0).to(tl.float32)
    if NORM:
        square = tl.sum(first * first + second * second, axis=1)[:, None] / (2 * half)
        scale = 1.0 / tl.sqrt(square + eps)
        first = first * scale * tl.load(weight_ptr + at, mask=at < half, other=0.0)
        second = second * scale * tl.load(weight_ptr + half + at, mask=at < half, other=0.0)
    row = token * 2 * half
    cos_first = tl.load(cos_ptr + row + at, mask=at < half, other=0.0)
    sin_first = tl.load(sin_ptr + row + at, mask=at < half, other=0.0)
    cos_second = tl.load(cos_ptr + row + half + at, mask=at < half, other=0.0)
    sin_second = tl.load(sin_ptr + row + half + at, mask=at < half, other=0.0)
    out = out_ptr + token * heads * 2 * half + head * 2 * half + at
    kind = out_ptr.dtype.element_ty
    tl.store(out, (first * cos_first - second * sin_first).to(kind), mask=mask)
    tl.store(out + half, (second * cos_second + first * sin_second).to(kind), mask=mask)


@triton.jit
def embed_norm(
    ids_ptr,
    words_ptr,
    positions_ptr,
    places_ptr,
    types_ptr,
    kinds_ptr,
    weight_ptr,
    shift_ptr,
    out_ptr,
    width,
    eps,
    POSITIONS: tl.constexpr,
    TYPES: tl.constexpr,
    SHIFT: tl.constexpr,
    RMS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """out = norm(words[id] + places[position] + kinds[type]). One program per token."""
    token = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    mask = at < width
    word = tl.load(ids_ptr + token).to(tl.int64)
    total = tl.load(words_ptr + word * width + at, mask=mask, other=0.0).to(tl.float32)
    if POSITIONS:
        place = tl.load(positions_ptr + token).to(tl.int64)
        total += tl.load(places_ptr + place * width + at, mask=mask, other=0.0).to(tl.float32)
    if TYPES:
        kind = tl.load(types_ptr + token).to(tl.int64)
        total += tl.load(kinds_ptr + kind * width + at, mask=mask, other=0.0).to(tl.float32)
    out = row_normed(total, mask, weight_ptr, shift_ptr, at, width, eps, RMS, SHIFT)
    tl.store(out_ptr + token * width + at, out.to(out_ptr.dtype.element_ty), mask=mask)


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
