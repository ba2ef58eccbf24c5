"""Tiny randomly initialised checkpoints, written by transformers itself, and how to load them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hedgerow_engine.native.executor import NativeExecutor
from hedgerow_engine.weights import Weights
from hedgerow_shared.modelcard import read_card


def save(model: Any, folder: Path, *, seed: int = 0) -> Path:
    """Fill every weight with seeded noise (norms near 1, all biases used) and write the folder."""
    generator = torch.Generator().manual_seed(seed)
    # Gemma stores its norm weights less one.
    norm_weight = 0.0 if "Gemma" in type(model).__name__ else 1.0
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim > 1:
                parameter.copy_(noise * parameter.shape[-1] ** -0.5)
            elif "norm" in name.lower() and name.endswith("weight"):
                parameter.copy_(norm_weight + 0.1 * noise)
            else:
                parameter.copy_(0.1 * noise)
    model.eval()
    model.save_pretrained(folder)
    return folder


def sentence_modules(folder: Path, pooling: dict[str, Any], *, normalize: bool = True) -> None:
    """modules.json and the pooling's config, as sentence-transformers writes them."""
    kinds = ["Transformer", "Pooling", *(["Normalize"] if normalize else [])]
    modules = [
        {
            "idx": i,
            "name": str(i),
            "path": "" if i == 0 else f"{i}_{kind}",
            "type": f"sentence_transformers.models.{kind}",
        }
        for i, kind in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))


def load(folder: Path, **options: Any) -> NativeExecutor:
    """An executor of the folder's model, with every tensor accounted for."""
    return NativeExecutor.load(
        read_card(folder), Weights.open(folder), log=lambda _: None, **options
    )


def hidden_states(model: Any, ids: np.ndarray, **inputs: Any) -> np.ndarray:
    """The oracle: float32 [length, hidden] of one sequence, alone."""
    with torch.inference_mode():
        batch = torch.tensor(np.asarray(ids)[None], dtype=torch.int64)
        return model(batch, **inputs).last_hidden_state[0].float().numpy()


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    a, b = np.asarray(a, np.float64).ravel(), np.asarray(b, np.float64).ravel()
    return float(a @ b / np.sqrt((a @ a) * (b @ b)))
