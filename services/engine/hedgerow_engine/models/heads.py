"""Heads that any encoder may carry: pooling with its Dense modules, and classifiers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from hedgerow_engine.layers.ops import Linear, Ops, activate, activation_of
from hedgerow_engine.models.base import ModelInputs
from hedgerow_engine.pooling import pool
from hedgerow_engine.weights import Weights
from hedgerow_shared.errors import StartupError
from hedgerow_shared.modelcard import ModelCard, Module, PoolingMode

Step = Callable[[Tensor], Tensor]


class EmbedHead:
    """Pooling, then the card's modules in their order; a final Normalize gives `unit` beside."""

    def __init__(self, card: ModelCard, ops: Ops, after: Step | None = None) -> None:
        self._modes: tuple[PoolingMode, ...] = card.pooling.modes
        self._steps = dense_steps(card, ops)
        if after is not None:
            self._steps.append(after)
        self._normalize = card.normalize

    def __call__(self, hidden_states: Tensor, inputs: ModelInputs) -> dict[str, Tensor]:
        parts = [pool(hidden_states, inputs.pooler, m, inputs.slots) for m in self._modes]
        rows = parts[0] if len(parts) == 1 else beside(*parts)
        for step in self._steps:
            rows = step(rows)
        rows = rows.float()
        return {"pooled": rows, "unit": unit(rows)} if self._normalize else {"pooled": rows}


def beside(*parts: Tensor) -> Tensor:
    """[rows, a], [rows, b], ... -> [rows, a + b + ...]; tensors one by one, so it records."""
    if has_torch_function(parts):
        return handle_torch_function(beside, parts, *parts)
    return torch.cat(parts, dim=1)


def unit(rows: Tensor) -> Tensor:
    """Rows of length 1, as sentence-transformers' Normalize makes them."""
    norms = torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
    return rows / norms.clamp_min(1e-12)


def dense_steps(card: ModelCard, ops: Ops) -> list[Step]:
    """Dense and inner Normalize modules between the pooling and the end, as functions."""
    modules: Sequence[Module] = [m for m in card.modules if m.kind in ("dense", "normalize")]
    if modules and modules[-1].kind == "normalize":
        modules = modules[:-1]
    return [unit if m.kind == "normalize" else _dense(m) for m in modules]


def _dense(module: Module) -> Step:
    """A Dense module, in float32: it has one row per sequence, so precision is free."""
    file = module.folder / "config.json"
    width = (int(module.config["out_features"]), int(module.config["in_features"]))
    name = str(module.config.get("activation_function", "torch.nn.modules.linear.Identity"))
    short = name.rsplit(".", 1)[-1].lower()
    activation = None if short == "identity" else activation_of(short)
    if activation is None and short != "identity":
        raise StartupError(f"{file}: activation_function {name!r} is not supported")
    if module.config.get("use_residual"):
        raise StartupError(f"{file}: use_residual is not supported")
    weights = Weights.open(module.folder)
    weight = torch.from_numpy(weights.take("linear.weight", width).float32())
    has_bias = module.config.get("bias", True)
    bias = torch.from_numpy(weights.take("linear.bias", width[:1]).float32()) if has_bias else None
    weights.finish()

    def step(rows: Tensor) -> Tensor:
        out = torch.nn.functional.linear(rows, weight, bias)
        return out if activation is None else activate(out, activation)

    return step


class ClassifierHead:
    """One row per sequence -> dense -> activation -> labels, as cross-encoders have it.

    `first` may be None: some heads go straight from the row to the labels.
    """

    def __init__(self, first: Linear | None, last: Linear, mode: PoolingMode = "cls") -> None:
        self._first, self._last = first, last
        self._mode: PoolingMode = mode

    def __call__(self, hidden_states: Tensor, inputs: ModelInputs) -> dict[str, Tensor]:
        rows = pool(hidden_states, inputs.pooler, self._mode, inputs.slots)
        rows = rows.to(hidden_states.dtype)
        if self._first is not None:
            rows = self._first(rows)
        return {"logits": self._last(rows).float()}
