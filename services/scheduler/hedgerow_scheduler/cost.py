"""What attention adds to the cost of a long sequence, from a model's config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hedgerow_shared.modelcard import ModelCard

_GATED = ("Qwen", "Llama", "Mistral", "Gemma", "ModernBert", "NomicBert", "Eurobert", "NewModel")
"""Architectures whose feed-forward part has three matrices instead of two."""


def attention_cost(card: ModelCard) -> float:
    """The c of `len + c * len^2`: FLOPs of attention per token and position, over FLOPs of the
    dense layers per token. 0 where the config does not tell the sizes.

    Both are per layer, so the number of layers drops out: c = 4 H D / (2 W) with W the weights
    of one layer's matrices, H heads of D numbers.
    """
    config: Mapping[str, Any] = card.config.get("text_config", card.config)
    hidden, heads = card.hidden_size, _size(config, "num_attention_heads")
    inner = _size(config, "intermediate_size")
    if not heads or not inner:
        return 0.0
    head_dim = _size(config, "head_dim") or hidden // heads
    kv_heads = _size(config, "num_key_value_heads") or heads
    width = heads * head_dim
    projections = hidden * (heads + 2 * kv_heads) * head_dim + width * hidden
    matrices = 3 if card.architecture.startswith(_GATED) else 2
    return 2 * width / (projections + matrices * hidden * inner)


def _size(config: Mapping[str, Any], key: str) -> int:
    value = config.get(key)
    return value if type(value) is int and value > 0 else 0
