"""What families share when they read a card: numbers, activations, what follows pooling.

Nothing here is an error for a person: `UnsupportedError` only says why the other executor has to
serve this model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hedgerow_engine.native.geometry import Activation, TailActivation, TailStep
from hedgerow_engine.native.tensors import Affine
from hedgerow_engine.weights import Weights
from hedgerow_shared.modelcard import ModelCard, Module

_ACTIVATIONS: Mapping[str, Activation] = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
    "relu": "relu",
}
_DENSE: Mapping[str, TailActivation] = {
    "identity": "identity",
    "tanh": "tanh",
    "gelu": "gelu",
    "relu": "relu",
    "sigmoid": "sigmoid",
    "silu": "silu",
}


class UnsupportedError(Exception):
    """The native executor cannot run this model; the text says why."""


def number(values: Mapping[str, Any], *keys: str) -> int:
    """A whole number above 0 under the first of `keys` that is there."""
    for key in keys:
        value = values.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    raise UnsupportedError(f"config.json: {keys[0]} is {values.get(keys[0])!r}")


def activation(values: Mapping[str, Any], *keys: str) -> Activation:
    """The MLP's activation under the first of `keys` that is there."""
    name = next((values[key] for key in keys if key in values), "gelu")
    if name not in _ACTIVATIONS:
        raise UnsupportedError(f"activation {name!r} has no native kernel")
    return _ACTIVATIONS[name]


def only(values: Mapping[str, Any], key: str, *allowed: Any) -> None:
    """Refuse a value that would change the vectors in a way this generator does not know."""
    if key in values and values[key] is not None and values[key] not in allowed:
        raise UnsupportedError(f"config.json: {key} is {values[key]!r}")


def heads(card: ModelCard, values: Mapping[str, Any]) -> tuple[int, int, int]:
    """(heads, key heads, head size)."""
    count = number(values, "num_attention_heads")
    kv = number(values, "num_key_value_heads") if "num_key_value_heads" in values else count
    size = values.get("head_dim") or card.hidden_size // count
    return count, kv, int(size)


def dense_modules(card: ModelCard) -> list[Module]:
    """The card's Dense modules in order. A Normalize may only be the last module."""
    after = [m for m in card.modules if m.kind in ("dense", "normalize", "logit_score")]
    kinds = [m.kind for m in after]
    if "logit_score" in kinds or "normalize" in kinds[:-1]:
        raise UnsupportedError(f"modules.json: {' -> '.join(kinds)} after pooling")
    return [m for m in after if m.kind == "dense"]


def dense_steps(card: ModelCard) -> tuple[TailStep, ...]:
    """The card's Dense modules as steps of the answer."""
    steps: list[TailStep] = []
    for module in dense_modules(card):
        name = str(module.config.get("activation_function", "identity")).rsplit(".", 1)[-1]
        if name.lower() not in _DENSE or module.config.get("use_residual"):
            raise UnsupportedError(
                f"{module.folder.name}/config.json: activation {name!r}, or residual"
            )
        steps.append(
            TailStep(
                "dense",
                number(module.config, "in_features"),
                number(module.config, "out_features"),
                _DENSE[name.lower()],
            )
        )
    return tuple(steps)


def dense_tensors(card: ModelCard) -> tuple[Affine, ...]:
    """The weights of the card's Dense modules."""
    affines: list[Affine] = []
    for module in dense_modules(card):
        weights = Weights.open(module.folder)
        n, k = int(module.config["out_features"]), int(module.config["in_features"])
        bias = bool(module.config.get("bias", True))
        affines.append(affine(weights, "linear", n, k, bias=bias))
        weights.finish()
    return tuple(affines)


def affine(weights: Weights, name: str, n: int, k: int, *, bias: bool = True) -> Affine:
    """A linear layer `name` of [n, k]."""
    weight = weights.take(f"{name}.weight", (n, k)).float32()
    return Affine(weight, weights.take(f"{name}.bias", (n,)).float32() if bias else None)


def fused(weights: Weights, names: list[str], sizes: list[int], k: int, *, bias: bool) -> Affine:
    """Linear layers of [size, k] each, below each other."""
    weight = weights.fused([f"{n}.weight" for n in names], [(size, k) for size in sizes])
    if not bias:
        return Affine(weight.float32())
    joined = weights.fused([f"{n}.bias" for n in names], [(size,) for size in sizes])
    return Affine(weight.float32(), joined.float32())


def norm(weights: Weights, name: str, n: int, *, bias: bool = True) -> Affine:
    """A norm `name` of width n."""
    weight = weights.take(f"{name}.weight", (n,)).float32()
    return Affine(weight, weights.take(f"{name}.bias", (n,)).float32() if bias else None)
