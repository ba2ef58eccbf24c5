"""The modules after a folder's pooling, checked, for every executor. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from hedgerow_engine.weightfile import RawTensor
from hedgerow_engine.weights import Weights
from hedgerow_shared.errors import StartupError
from hedgerow_shared.jsonfile import JsonObject
from hedgerow_shared.modelcard import ModelCard, Module

DenseActivation = Literal["identity", "tanh", "gelu", "relu", "sigmoid", "silu"]
_ACTIVATIONS = ("identity", "tanh", "gelu", "relu", "sigmoid", "silu")


@dataclass(frozen=True, slots=True)
class Dense:
    """A Dense module: [width_out, width_in], a bias or none, an activation."""

    folder: Path
    width_in: int
    width_out: int
    bias: bool
    activation: DenseActivation


Step: TypeAlias = Dense | Literal["normalize", "quantize"]


def after_pooling(card: ModelCard) -> list[Step]:
    """In their order, without a Normalize at the very end, which is `card.normalize`. Raises
    StartupError for what may not be skipped; the card has checked order and widths."""
    modules = [m for m in card.modules if m.kind in ("dense", "normalize", "quantize")]
    if modules and modules[-1].kind == "normalize":
        modules = modules[:-1]
    return [_step(m) for m in modules]


def open_dense(dense: Dense) -> tuple[RawTensor, RawTensor | None]:
    """(weight, bias) of a Dense module, with every tensor of its file accounted for."""
    weights = Weights.open(dense.folder)
    weight = weights.take("linear.weight", (dense.width_out, dense.width_in))
    bias = weights.take("linear.bias", (dense.width_out,)) if dense.bias else None
    weights.finish()
    return weight, bias


def _step(module: Module) -> Step:
    if module.kind != "dense":
        return "normalize" if module.kind == "normalize" else "quantize"
    config = JsonObject(module.folder / "config.json", module.config)
    # A missing key is sentence-transformers' default, a null one says that there is none.
    absent = "Identity" if "activation_function" in module.config else "Tanh"
    name = config.maybe_text("activation_function") or absent
    short = name.rsplit(".", 1)[-1].lower()
    if short not in _ACTIVATIONS:
        raise StartupError(f"{config.file}: activation_function {name!r} is not supported")
    if config.flag("use_residual", False):
        raise StartupError(f"{config.file}: use_residual is not supported")
    return Dense(
        module.folder,
        config.whole("in_features"),
        config.whole("out_features"),
        config.flag("bias", True),
        short,
    )
