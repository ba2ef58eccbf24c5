"""What families share when they read a card: numbers, activations, what follows pooling.

Nothing here is an error for a person: `UnsupportedError` only says why the other executor has to
serve this model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hedgerow_engine.native.geometry import Activation, TailActivation, TailStep
from hedgerow_engine.native.tensors import Affine, Norm, Rope
from hedgerow_engine.weights import Weights, split
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
    count = number(values, "num_attention_heads", "n_head", "n_heads")
    kv = number(values, "num_key_value_heads") if values.get("num_key_value_heads") else count
    size = values.get("head_dim") or card.hidden_size // count
    return count, kv, int(size)


def windowed_layers(
    values: Mapping[str, Any], count: int, full_every: int | None, *, first_full: bool
) -> list[bool]:
    """True for each layer whose rows see a window only.

    `layer_types` decides; without it, one layer of `full_every` sees everything (the first of
    each group or the last), and None makes all of them full.
    """
    kinds = values.get("layer_types")
    if kinds is None:
        if full_every is None:
            return [False] * count
        turn = 0 if first_full else full_every - 1
        return [i % full_every != turn for i in range(count)]
    if len(kinds) != count or set(kinds) - {"full_attention", "sliding_attention"}:
        raise UnsupportedError(f"config.json: layer_types {sorted(set(kinds))}")
    return [kind == "sliding_attention" for kind in kinds]


def rope(
    values: Mapping[str, Any],
    kind: str = "full_attention",
    *,
    key: str = "rope_theta",
    default: float = 10000.0,
) -> Rope:
    """The angles of one kind of layer, in either spelling: flat keys, or rope_parameters."""
    nested = values.get("rope_parameters") or {}
    nested = nested.get(kind, nested) if isinstance(nested, dict) else {}
    scaling = nested if "rope_type" in nested else (values.get("rope_scaling") or {})
    stretch = str(scaling.get("rope_type") or scaling.get("type") or "default")
    if stretch not in ("default", "linear", "llama3"):
        raise UnsupportedError(f"config.json: rope scaling {stretch!r}")
    partial = nested.get("partial_rotary_factor", values.get("partial_rotary_factor", 1.0))
    if float(partial) != 1.0:
        raise UnsupportedError(f"config.json: partial_rotary_factor {partial}")
    return Rope(
        float(nested.get("rope_theta") or values.get(key) or default),
        stretch,
        float(scaling.get("factor") or 1.0),
        float(scaling.get("low_freq_factor") or 1.0),
        float(scaling.get("high_freq_factor") or 4.0),
        int(scaling.get("original_max_position_embeddings") or 8192),
    )


def _answer_modules(card: ModelCard) -> list[Module]:
    """Modules after the pooling, without a Normalize at the very end."""
    after = [m for m in card.modules if m.kind not in ("transformer", "pooling")]
    if after and after[-1].kind == "normalize":
        after = after[:-1]
    for module in after:
        if module.kind not in ("dense", "normalize", "quantize"):
            raise UnsupportedError(f"modules.json: {module.kind} after pooling")
    return after


def answer_steps(card: ModelCard) -> tuple[TailStep, ...]:
    """What an embedder's modules do with a pooled row."""
    steps: list[TailStep] = []
    width = card.hidden_size * len(card.pooling.modes)
    for module in _answer_modules(card):
        if module.kind != "dense":
            kind = "unit" if module.kind == "normalize" else "quantize"
            steps.append(TailStep(kind, width, width))
            continue
        values = module.config
        name = str(values.get("activation_function", "Tanh")).rsplit(".", 1)[-1].lower()
        if name not in _DENSE or values.get("use_residual"):
            raise UnsupportedError(f"{module.folder.name}/config.json: {name!r}, or use_residual")
        size = number(values, "in_features")
        width = number(values, "out_features")
        steps.append(TailStep("dense", size, width, _DENSE[name]))
    return tuple(steps)


def answer_tensors(card: ModelCard) -> tuple[Affine | None, ...]:
    """The weights of `answer_steps`; None for steps without any."""
    affines: list[Affine | None] = []
    for module in _answer_modules(card):
        if module.kind != "dense":
            affines.append(None)
            continue
        weights = Weights.open(module.folder)
        n, k = int(module.config["out_features"]), int(module.config["in_features"])
        affines.append(affine(weights, "linear", n, k))
        weights.finish()
    return tuple(affines)


def affine(weights: Weights, name: str, n: int, k: int) -> Affine:
    """A linear layer `name` of [n, k], with the bias its checkpoint has or lacks."""
    weight = weights.take(f"{name}.weight", (n, k))
    bias = weights.optional(f"{name}.bias", (n,))
    return Affine(weight, None if bias is None else bias.float32())


def halves(affine: Affine) -> tuple[Affine, Affine]:
    """A linear layer of 2n rows as two of n."""
    first, second = split(affine.weight, 2)
    half = first.shape[0]
    biases = (None, None) if affine.bias is None else (affine.bias[:half], affine.bias[half:])
    return Affine(first, biases[0]), Affine(second, biases[1])


def fused(weights: Weights, names: list[str], sizes: list[int], k: int) -> Affine:
    """Linear layers of [size, k] each, below each other."""
    weight = weights.fused([f"{n}.weight" for n in names], [(size, k) for size in sizes])
    if not weights.has(f"{names[0]}.bias"):
        return Affine(weight)
    bias = weights.fused([f"{n}.bias" for n in names], [(size,) for size in sizes])
    return Affine(weight, bias.float32())


def norm(weights: Weights, name: str, n: int) -> Norm:
    """A norm `name` of width n, with the bias its checkpoint has or lacks."""
    weight = weights.take(f"{name}.weight", (n,)).float32()
    bias = weights.optional(f"{name}.bias", (n,))
    return Norm(weight, None if bias is None else bias.float32())
