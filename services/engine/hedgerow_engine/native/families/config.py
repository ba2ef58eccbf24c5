"""What families share when they read a card: activations, what follows pooling, linears, norms.

Values come from `hedgerow_engine.models.config`, which raises StartupError for a config that no
executor serves. `UnsupportedError` is not an error for a person: it only says why the other
executor has to serve this model.
"""

from __future__ import annotations

from collections.abc import Callable

from hedgerow_engine.models.config import Config, NotBuiltError, UnsupportedError
from hedgerow_engine.models.modules import Dense, after_pooling, open_dense
from hedgerow_engine.models.rope import angles
from hedgerow_engine.native.geometry import Activation, TailStep
from hedgerow_engine.native.tensors import Affine, LayerTensors, Norm, Rope
from hedgerow_engine.weights import Weights, split
from hedgerow_shared.modelcard import ModelCard


def mlp_activation(config: Config) -> Activation:
    try:
        name = config.mlp_activation()
    except NotBuiltError as error:
        raise UnsupportedError(f"activation {config.mlp_name()!r} has no native kernel") from error
    if name in ("tanh", "sigmoid"):
        raise UnsupportedError(f"activation {name!r} has no native kernel")
    return name


def rope(config: Config, kind: str = "full_attention") -> Rope:
    """The angles of one kind of layer."""
    return Rope(*angles(config, kind))


def answer_steps(card: ModelCard) -> tuple[TailStep, ...]:
    """What an embedder's modules do with a pooled row."""
    steps: list[TailStep] = []
    width = card.hidden_size * len(card.pooling.modes)
    for module in after_pooling(card):
        if isinstance(module, Dense):
            steps.append(TailStep("dense", width, module.width_out, module.activation))
            width = module.width_out
        else:
            kind = "unit" if module == "normalize" else "quantize"
            steps.append(TailStep(kind, width, width))
    return tuple(steps)


def answer_tensors(card: ModelCard) -> tuple[Affine | None, ...]:
    """The weights of `answer_steps`; None for steps without any."""
    return tuple(
        _dense(module) if isinstance(module, Dense) else None for module in after_pooling(card)
    )


def _dense(module: Dense) -> Affine:
    weight, bias = open_dense(module)
    return Affine(weight, None if bias is None else bias.float32())


def layers(read: Callable[[int], LayerTensors]) -> Callable[[int], LayerTensors]:
    """`read`, after it read the first layer once: sizes that the weights do not have are refused
    before a program is written, and memory taken, for them."""
    read(0)
    return read


def affine(weights: Weights, name: str, n: int, k: int, *, bias: bool = True) -> Affine:
    """A linear layer `name` of [n, k]."""
    weight = weights.take(f"{name}.weight", (n, k))
    return Affine(weight, weights.take(f"{name}.bias", (n,)).float32() if bias else None)


def halves(affine: Affine) -> tuple[Affine, Affine]:
    """A linear layer of 2n rows as two of n."""
    first, second = split(affine.weight, 2)
    half = first.shape[0]
    biases = (None, None) if affine.bias is None else (affine.bias[:half], affine.bias[half:])
    return Affine(first, biases[0]), Affine(second, biases[1])


def fused(
    weights: Weights, names: list[str], sizes: list[int], k: int, *, bias: bool = True
) -> Affine:
    """Linear layers of [size, k] each, below each other."""
    weight = weights.fused([f"{n}.weight" for n in names], [(size, k) for size in sizes])
    if not bias:
        return Affine(weight)
    shift = weights.fused([f"{n}.bias" for n in names], [(size,) for size in sizes])
    return Affine(weight, shift.float32())


def norm(weights: Weights, name: str, n: int, *, bias: bool = True) -> Norm:
    """A layer norm `name` of width n."""
    weight = weights.take(f"{name}.weight", (n,)).float32()
    return Norm(weight, weights.take(f"{name}.bias", (n,)).float32() if bias else None)
