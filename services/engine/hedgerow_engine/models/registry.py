"""Which file builds which family, and which families are refused by name."""

from __future__ import annotations

from collections.abc import Callable

from hedgerow_engine.layers.ops import Ops
from hedgerow_engine.models.base import Model
from hedgerow_engine.models.bert_family import load_bert
from hedgerow_engine.weights import Weights
from hedgerow_shared.errors import StartupError
from hedgerow_shared.modelcard import ModelCard

Loader = Callable[[ModelCard, Weights, Ops], Model]

FAMILIES: dict[str, Loader] = {"bert": load_bert}


def load_model(card: ModelCard, weights: Weights, ops: Ops) -> Model:
    """Build the model of a folder. Raises StartupError naming what is not supported or wrong."""
    loader = FAMILIES.get(card.model_type)
    if loader is None:
        raise StartupError(
            f"{card.folder / 'config.json'}: model_type {card.model_type!r} is not supported "
            f"(supported: {', '.join(sorted(FAMILIES))})"
        )
    model = loader(card, weights, ops)
    weights.finish()
    return model
