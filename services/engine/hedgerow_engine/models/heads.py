"""Heads that any encoder may carry. All compute in float32: they see one row per sequence."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from hedgerow_engine.layers.opaque import opaque
from hedgerow_engine.layers.ops import Activation, Norm, Ops
from hedgerow_engine.models.base import ModelInputs
from hedgerow_engine.models.modules import Dense, after_pooling, open_dense
from hedgerow_engine.pooling import FinishingPooler, pool
from hedgerow_engine.weights import Weights
from hedgerow_shared.modelcard import ModelCard, PoolingMode

Step = Callable[[Tensor], Tensor]


class EmbedHead:
    """Pooling, then the card's modules in their order; a final Normalize gives `unit` beside."""

    def __init__(self, card: ModelCard, ops: Ops) -> None:
        self._modes: tuple[PoolingMode, ...] = card.pooling.modes
        self._steps = module_steps(card, ops)
        self._normalize = card.normalize
        self._plain = card.normalize and not self._steps and len(self._modes) == 1

    def __call__(self, hidden_states: Tensor, inputs: ModelInputs) -> dict[str, Tensor]:
        pooler = inputs.pooler
        if self._plain and isinstance(pooler, FinishingPooler):
            return pooler.finish(hidden_states, self._modes[0])
        parts = [pool(hidden_states, inputs.pooler, m, inputs.slots) for m in self._modes]
        rows = parts[0] if len(parts) == 1 else beside(*parts)
        for step in self._steps:
            rows = step(rows)
        return {"pooled": rows, "unit": unit(rows)} if self._normalize else {"pooled": rows}


class ClassifierHead:
    """One pooled row per sequence through `steps` to its labels: raw logits, no sigmoid."""

    def __init__(self, steps: Sequence[Step], mode: PoolingMode = "cls") -> None:
        self._steps = steps
        self._mode: PoolingMode = mode

    def __call__(self, hidden_states: Tensor, inputs: ModelInputs) -> dict[str, Tensor]:
        rows = pool(hidden_states, inputs.pooler, self._mode, inputs.slots)
        for step in self._steps:
            rows = step(rows)
        return {"logits": rows}


class TokenHead:
    """Late interaction (ColBERT): every token's vector through `steps`, then to length 1 where
    the model's definition says so."""

    def __init__(self, steps: Sequence[Step], *, normalize: bool) -> None:
        self._steps = [*steps, unit] if normalize else steps

    def __call__(self, hidden_states: Tensor, inputs: ModelInputs) -> dict[str, Tensor]:
        rows = hidden_states.float()
        for step in self._steps:
            rows = step(rows)
        return {"token_vectors": rows}


@opaque
def beside(*parts: Tensor) -> Tensor:
    """[rows, a], [rows, b], ... -> [rows, a + b + ...]; tensors one by one, so it records."""
    return torch.cat(parts, dim=1)


def unit(rows: Tensor) -> Tensor:
    """Rows of length 1, as sentence-transformers' Normalize makes them."""
    norms = torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
    return rows / norms.clamp_min(1e-12)


def to_int8_range(rows: Tensor) -> Tensor:
    """The quantiser pplx-embed ends with: whole numbers -127..127, kept as float32.

    A negative number that rounds to zero stays -0.0: its sign is the model's binary output.
    """
    return torch.round(torch.tanh(rows) * 127)


def module_steps(card: ModelCard, ops: Ops) -> list[Step]:
    """Dense, inner Normalize and quantiser modules after the pooling, as functions."""
    made: list[Step] = []
    for module in after_pooling(card):
        if isinstance(module, Dense):
            made.append(dense(module, ops))
        else:
            made.append(unit if module == "normalize" else to_int8_range)
    return made


def dense(module: Dense, ops: Ops) -> Step:
    """A Dense module of sentence-transformers."""
    weight, bias = open_dense(module)
    activation = None if module.activation == "identity" else module.activation
    return ops.float_linear(weight, bias, activation)


def label_step(
    weights: Weights,
    ops: Ops,
    name: str,
    shape: tuple[int, int],
    activation: Activation | None = None,
    *,
    bias: bool = True,
) -> Step:
    """One linear of a classifier."""
    weight = weights.take(f"{name}.weight", shape)
    shift = weights.take(f"{name}.bias", shape[:1]) if bias else None
    return ops.float_linear(weight, shift, activation)


def norm_step(ops: Ops, norm: Norm) -> Step:
    return lambda rows: ops.norm(norm, rows)
