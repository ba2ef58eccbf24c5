"""Triton source of the fused kernels. One program per row, slot or token; see `fused` for shapes.

Written to what Triton 3.6 and newer share. Block sizes are fixed, because autotuning would
benchmark while serving. Everything is computed in float32; masks guard odd widths.
"""

# pyright: basic, reportMissingImports=false, reportArgumentType=false
# ruff: noqa: ANN001, ANN201, N803

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
