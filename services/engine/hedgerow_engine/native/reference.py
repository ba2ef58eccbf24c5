"""The same model in plain numpy: what a program must compute, written to be read.

One sequence, float32, no blocks, no packing. The self-test compares a program with it at every
start; tests compare it with transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import erf, pi, sqrt

import numpy as np
import numpy.typing as npt

from hedgerow_engine.native.geometry import Geometry, TailStep
from hedgerow_engine.native.norms import NormKind
from hedgerow_engine.native.tensors import Affine, Floats, LayerTensors, ModelTensors, Norm
from hedgerow_engine.weightfile import RawTensor
from hedgerow_shared.modelcard import PoolingMode

TINY = 1e-30

_ACTIVATIONS: Mapping[str, Callable[[Floats], Floats]] = {
    "identity": lambda x: x,
    "gelu": lambda x: x * 0.5 * (1 + np.vectorize(erf)(x / sqrt(2))),
    "gelu_tanh": lambda x: x * 0.5 * (1 + np.tanh(sqrt(2 / pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, 0),
}


def reference_rows(
    model: ModelTensors,
    sequences: Sequence[npt.NDArray[np.int32]],
    *,
    layers: Iterable[LayerTensors] | None = None,
) -> list[Floats]:
    """A row of the answer for each sequence, not scaled to length 1: embed, `layers` (None =
    all of the model's), pool, tail."""
    return [row for row, _ in reference_answers(model, sequences, layers=layers)]


def reference_answers(
    model: ModelTensors,
    sequences: Sequence[npt.NDArray[np.int32]],
    *,
    layers: Iterable[LayerTensors] | None = None,
) -> list[tuple[Floats, float]]:
    """The same rows, and for each the length that rounding errors are to be measured by: its own,
    or what it would have been had the terms of a head's sums not cancelled each other."""
    g = model.geometry
    states = [_embed(model, ids) for ids in sequences]
    scale = model.scale or g.head_dim**-0.5
    for layer in map(model.layer, range(model.num_layers)) if layers is None else layers:
        states = [layer_forward(g, layer, x, scale=scale) for x in states]
    return [_answer(model, x) for x in states]


def _embed(model: ModelTensors, ids: npt.NDArray[np.int32]) -> Floats:
    g, words = model.geometry, model.word
    rows = RawTensor(words.name, words.dtype, words.data[ids], words.file)
    x = rows.float32() * np.float32(g.embed.scale)
    if model.table is not None:
        x = x + model.table[: len(ids) if g.embed.positions else 1]
    return x if model.embed_norm is None else _norm(x, model.embed_norm, g.norm, g.eps)


def _answer(model: ModelTensors, x: Floats) -> tuple[Floats, float]:
    g = model.geometry
    if model.final_norm is not None:
        x = _norm(x, model.final_norm, g.norm, g.eps)
    row = np.concatenate([_pool(x, mode) for mode in g.poolings])
    size = float(np.linalg.norm(row))
    for step, weights in zip(g.tail, model.tail, strict=True):
        before, row = row, _tail(row, step, weights)
        size = _size(before, row, size, step, weights)
    return row.astype(np.float32), size


def _size(
    before: Floats, after: Floats, size: float, step: TailStep, weights: Affine | Norm | None
) -> float:
    """`size` after a step of the tail."""
    length = float(np.linalg.norm(after))
    if step.kind == "quantize":
        # Half a step for each number is as exact as it can be.
        return max(127 * size, 16 * sqrt(after.shape[0]))
    if isinstance(weights, Affine):
        weight = weights.weight.float32()
        return max(length, float(np.linalg.norm(weight)) * size / sqrt(weight.shape[1]))
    return length * size / max(float(np.linalg.norm(before)), TINY)


def layer_forward(g: Geometry, layer: LayerTensors, x: Floats, *, scale: float) -> Floats:
    """[length, hidden] -> [length, hidden]."""

    def norm(x: Floats, norm: Norm | None) -> Floats:
        return x if norm is None else _norm(x, norm, g.norm, g.eps)

    def after(x: Floats, weight: Floats | None) -> Floats:
        return norm(x, None if weight is None else Norm(weight))

    inner = norm(x, layer.attention_norm) if g.norm_first else x
    context = _attend(g, layer, _linear(inner, layer.qkv), scale)
    x = x + after(_linear(context, layer.o), layer.after_attention_norm)
    if g.norm_first:
        inner = _mlp(g, layer, norm(x, layer.mlp_norm))
        return x + after(inner, layer.after_mlp_norm)
    x = norm(x, layer.attention_norm)
    return norm(x + _mlp(g, layer, x), layer.mlp_norm)


def _attend(g: Geometry, layer: LayerTensors, qkv: Floats, scale: float) -> Floats:
    length = qkv.shape[0]
    ends = np.cumsum([g.heads, g.kv_heads]) * g.head_dim
    q, k, v = (part.reshape(length, -1, g.head_dim) for part in np.split(qkv, ends, axis=1))
    if layer.q_norm is not None and layer.k_norm is not None:
        q = _norm(q, Norm(layer.q_norm), "rms", g.eps)
        k = _norm(k, Norm(layer.k_norm), "rms", g.eps)
    if layer.rope is not None:
        table = layer.rope.table(g.head_dim, length)
        q, k = _rotate(q, table), _rotate(k, table)
    k, v = (np.repeat(part, g.heads // g.kv_heads, axis=1) for part in (k, v))
    scores = np.einsum("ihd,jhd->hij", q, k) * scale
    distance = np.arange(length)[None] - np.arange(length)[:, None]
    if layer.bias is not None:
        scores = scores + layer.bias[:, layer.bias.shape[1] // 2 + distance]
    scores[:, (distance < -layer.back) | (distance > layer.ahead)] = -np.inf
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = weights / weights.sum(axis=-1, keepdims=True)
    context = np.einsum("hij,jhd->ihd", weights, v).reshape(length, -1)
    return np.asarray(context, np.float32)


def _rotate(x: Floats, table: Floats) -> Floats:
    cos, sin = table[:, None, 0], table[:, None, 1]
    half = x.shape[-1] // 2
    low, high = x[..., :half], x[..., half:]
    turned = np.empty_like(x)
    turned[..., :half] = low * cos - high * sin
    turned[..., half:] = high * cos + low * sin
    return turned


def _mlp(g: Geometry, layer: LayerTensors, x: Floats) -> Floats:
    act = _ACTIVATIONS[g.activation]
    if layer.gate is None:
        return _linear(act(_linear(x, layer.up)), layer.down)
    return _linear(act(_linear(x, layer.gate)) * _linear(x, layer.up), layer.down)


def _linear(x: Floats, affine: Affine) -> Floats:
    product = x @ affine.weight.float32().T
    return product if affine.bias is None else product + affine.bias


def _norm(x: Floats, norm: Norm, kind: NormKind, eps: float) -> Floats:
    if kind == "layer":
        x = x - x.mean(axis=-1, keepdims=True)
    x = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps) * norm.weight
    return x if norm.bias is None else x + norm.bias


def _pool(x: Floats, mode: PoolingMode) -> Floats:
    length = x.shape[0]
    if mode == "cls":
        return x[0]
    if mode == "lasttoken":
        return x[-1]
    if mode == "max":
        return x.max(axis=0)
    if mode == "weightedmean":
        places = np.arange(1, length + 1, dtype=np.float32)
        return places @ x / np.float32(places.sum())
    return x.sum(axis=0) / np.float32(sqrt(length) if mode == "mean_sqrt_len" else length)


def _tail(row: Floats, step: TailStep, weights: Affine | Norm | None) -> Floats:
    if step.kind == "unit":
        return row / np.float32(max(np.linalg.norm(row), 1e-12))
    if step.kind == "quantize":
        return np.asarray(np.round(np.tanh(row) * 127), np.float32)
    if isinstance(weights, Norm) and step.kind != "dense":
        return _norm(row, weights, step.kind, step.eps)
    assert isinstance(weights, Affine)
    return _ACTIVATIONS[step.activation](_linear(row, weights))
