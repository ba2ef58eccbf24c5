"""Tiny random checkpoints, written by transformers itself, and what it says about them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from hedgerow_engine.engine import Engine
from hedgerow_shared.ragged import Lane, OutputSpec, RaggedBatch

LENGTHS = (5, 17, 5, 1, 40, 64, 33)


def save(folder: Path, model: Any, **config: Any) -> Path:
    """Write `model` as a folder, its config patched by `config` (None removes a key)."""
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    if config:
        patch_json(folder / "config.json", **config)
    return folder


def patch_json(file: Path, **values: Any) -> None:
    content = json.loads(file.read_text()) if file.is_file() else {}
    content |= values
    file.write_text(json.dumps({k: v for k, v in content.items() if v is not None}))


def write_modules(
    folder: Path, *kinds: str, pooling: dict[str, Any] | None = None, prefix: str = ""
) -> None:
    """modules.json with the given kinds; Pooling gets its own config."""
    entries: list[dict[str, Any]] = []
    for i, kind in enumerate(kinds):
        path = "" if kind == "Transformer" else f"{i}_{kind}"
        module = f"{prefix or 'sentence_transformers.models.'}{kind}"
        entries.append({"idx": i, "name": str(i), "path": path, "type": module})
        if kind == "Pooling":
            patch_json_dir(folder / path, **(pooling or {"pooling_mode_mean_tokens": True}))
    (folder / "modules.json").write_text(json.dumps(entries))


def patch_json_dir(folder: Path, **values: Any) -> None:
    folder.mkdir(exist_ok=True)
    patch_json(folder / "config.json", **values)


def token_batches(vocab: int, lengths: tuple[int, ...] = LENGTHS, seed: int = 0) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(5, vocab, n).tolist() for n in lengths]


@torch.no_grad()
def hidden_of(model: Any, ids: list[int], **inputs: Any) -> np.ndarray:
    """transformers' last hidden state of one sequence, float32 [len(ids), hidden]."""
    model = model.eval().float()
    extra = {k: torch.tensor([v]) for k, v in inputs.items()}
    out = model(
        input_ids=torch.tensor([ids]), attention_mask=torch.ones(1, len(ids)).long(), **extra
    )
    return out.last_hidden_state[0].numpy()


@torch.no_grad()
def logits_of(model: Any, ids: list[int], **inputs: Any) -> np.ndarray:
    model = model.eval().float()
    extra = {k: torch.tensor([v]) for k, v in inputs.items()}
    out = model(
        input_ids=torch.tensor([ids]), attention_mask=torch.ones(1, len(ids)).long(), **extra
    )
    return out.logits[0].numpy()


def rows(engine: Engine, sequences: list[list[int]], spec: OutputSpec | None = None) -> list[Any]:
    """Rows of one batch; an embedding by default."""
    batch = RaggedBatch.of(sequences, spec or OutputSpec())
    return engine.step(batch, Lane.QUERY).result().rows


def embed(engine: Engine, sequences: list[list[int]], spec: OutputSpec | None = None) -> np.ndarray:
    return np.stack([row[0] for row in rows(engine, sequences, spec)])


def seeded(model_class: Any, config: Any, std: float = 0.3) -> Any:
    """A random model whose activations are big enough that every part matters."""
    torch.manual_seed(1)
    model = model_class(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn_like(parameter)
            # Norm scales stay near one, and biases are never zero: a bias left out must show.
            scale = std if parameter.ndim > 1 else 0.1
            parameter.copy_(
                noise * scale + (1.0 if "norm" in name.lower() and name.endswith("weight") else 0.0)
            )
    return model


def tiny_bert() -> Any:
    """A random BERT of two layers that takes 130 tokens."""
    config = transformers.BertConfig(
        vocab_size=80,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=128,
        max_position_embeddings=130,
    )
    return seeded(transformers.BertModel, config)


__all__ = ["transformers"]
