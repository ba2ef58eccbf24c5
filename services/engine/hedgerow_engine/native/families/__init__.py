"""Which families the native executor knows, and where each reads its geometry and tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, cast

from hedgerow_engine.models.checks import check_card
from hedgerow_engine.native.families import bert, decoder, modernbert, rotary_bert
from hedgerow_engine.native.families.config import UnsupportedError
from hedgerow_engine.native.geometry import Geometry
from hedgerow_engine.native.tensors import ModelTensors
from hedgerow_engine.weights import Weights
from hedgerow_shared.modelcard import ModelCard

__all__ = ["FAMILIES", "Family", "UnsupportedError", "family_of"]


class Family(Protocol):
    """A module of this package."""

    def geometry(self, card: ModelCard, words: str) -> Geometry:
        """The shape of a card's model, whose word table is of dtype `words` ("F32", "F16",
        "BF16"). Raises UnsupportedError with the reason."""
        ...

    def tensors(self, card: ModelCard, weights: Weights, g: Geometry) -> ModelTensors:
        """Its weights. Raises StartupError naming file and tensor."""
        ...


_MODULES = (
    (bert, tuple(bert.NAMES)),
    (modernbert, ("modernbert",)),
    (rotary_bert, ("gte", "new", "nomic_bert")),
    (decoder, ("qwen3", "qwen2", "llama", "mistral", "eurobert", "gemma3_text")),
    (decoder, ("bidirectional_pplx_qwen3", "llama_bidirec")),
)
FAMILIES: Mapping[str, Family] = {
    name: cast(Family, module) for module, names in _MODULES for name in names
}


def family_of(card: ModelCard) -> Family:
    """Raises UnsupportedError when there is none, StartupError for what no executor serves."""
    check_card(card)
    family = FAMILIES.get(card.model_type)
    # JinaBERT calls itself "bert" and shows its own attention only in auto_map.
    if "jinabert" in str(card.config.get("auto_map")).lower().replace("-", ""):
        raise UnsupportedError("JinaBERT's attention has no native kernel")
    if family is None:
        known = ", ".join(sorted(FAMILIES))
        raise UnsupportedError(
            f"model_type {card.model_type!r} has no native program (there: {known})"
        )
    return family
