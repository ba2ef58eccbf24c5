"""Which outputs a folder offers, read from its card alone."""

from __future__ import annotations

from hedgerow_shared.modelcard import ModelCard
from hedgerow_shared.modules import on_tokens


def is_quantized(card: ModelCard) -> bool:
    """True for a model whose own last step rounds its vectors to int8 (pplx-embed)."""
    return any(module.kind == "quantize" for module in card.modules)


def is_late_interaction(card: ModelCard) -> bool:
    """True when the folder's modules work on tokens: no Pooling, but a Dense or a token mask."""
    return on_tokens(card.modules)


def is_sparse(card: ModelCard) -> bool:
    """True for a SPLADE folder."""
    return any(module.kind == "splade" for module in card.modules)


def m3_heads(card: ModelCard) -> tuple[str, ...]:
    """Files of the extra heads BGE-M3 has beside its embedding, those that are there: converted
    ones first, else the `.pt` files it is published with."""
    found: list[str] = []
    for stem in ("sparse_linear", "colbert_linear"):
        names = (f"{stem}.safetensors", f"{stem}.pt")
        found += [name for name in names if (card.trunk / name).is_file()][:1]
    return tuple(found)


def only_in_torch(card: ModelCard) -> str | None:
    """What this folder needs that native code does not compute; None when nothing."""
    if is_sparse(card):
        return "sparse output is computed in torch only"
    if is_late_interaction(card) or m3_heads(card):
        return "outputs per token are computed in torch only"
    return None
