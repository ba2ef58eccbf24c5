"""Tiny folders whose config.json is changed after transformers wrote them, and what transformers
makes of the same folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from tests.engine.tiny import hidden_of, save, seeded, token_batches, transformers, write_modules

BOTH = ("native", "packed")
# Wide enough for native code, long enough for a window of 8 to hide something.
SHAPE = {
    "vocab_size": 80,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 96,
    "max_position_embeddings": 130,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
}
GROUPED = {"num_key_value_heads": 1, "head_dim": 32}
MORE: dict[str, dict[str, Any]] = {
    "Llama": GROUPED,
    "Mistral": {**GROUPED, "sliding_window": 8},
    "Qwen2": {"num_key_value_heads": 1},
    "Qwen3": GROUPED,
    "EuroBert": {**GROUPED, "mask_token_id": 3},
    "Gemma3Text": {**GROUPED, "sliding_window": 8, "sliding_window_pattern": 2},
    "ModernBert": {"local_attention": 8, "cls_token_id": 0, "sep_token_id": 2},
    "DebertaV2": {"relative_attention": True, "pos_att_type": ["c2p"], "type_vocab_size": 0},
}
LAST = ("Llama", "Mistral", "Qwen2", "Qwen3", "Gemma3Text")


def write(folder: Path, family: str, **config: Any) -> Path:
    """A tiny model of transformers' `family` with a Pooling."""
    made = getattr(transformers, f"{family}Config")(**SHAPE | MORE.get(family, {}) | config)
    save(folder, seeded(getattr(transformers, f"{family}Model"), made))
    mode = "lasttoken" if family in LAST else "mean"
    write_modules(folder, "Transformer", "Pooling", pooling={"pooling_mode": mode})
    return folder


def change(file: Path, *drop: str, **values: Any) -> None:
    """Remove keys of a JSON file, then set others (None is null)."""
    content = json.loads(file.read_text())
    content = {k: v for k, v in content.items() if k not in drop} | values
    file.write_text(json.dumps(content))


def oracle(folder: Path, family: str, sequences: list[list[int]]) -> np.ndarray:
    """The pooled vectors of the folder as transformers loads it."""
    model = getattr(transformers, f"{family}Model").from_pretrained(folder)
    hidden = [hidden_of(model, ids) for ids in sequences]
    return np.stack([h[-1] if family in LAST else h.mean(0) for h in hidden])


SEQUENCES = token_batches(80, (5, 40, 1, 100))
