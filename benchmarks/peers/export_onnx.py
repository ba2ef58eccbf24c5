"""A model folder as an ONNX graph with pooling inside: run by the `onnx` peer's interpreter.

`export_onnx.py FOLDER OUT.onnx mean|lasttoken` writes OUT.onnx, and for BERT shapes
OUT.fused.onnx with ONNX Runtime's own attention, GELU and layer norm fusions.
Eager attention is exported: both runtimes recognise it, and neither knows the fused form.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModel


class Embedder(torch.nn.Module):
    """(input_ids, attention_mask) int64 [b, n] -> unit vectors float32 [b, dim]."""

    def __init__(self, model: Any, pooling: str) -> None:
        super().__init__()
        self.model, self.pooling = model, pooling

    def forward(self, input_ids: Any, attention_mask: Any) -> Any:
        answer = self.model(input_ids=input_ids, attention_mask=attention_mask)
        hidden = answer.last_hidden_state
        if self.pooling == "mean":
            kept = attention_mask[..., None].to(hidden.dtype)
            pooled = (hidden * kept).sum(1) / kept.sum(1)
        else:
            pooled = hidden[torch.arange(hidden.shape[0]), attention_mask.sum(1) - 1]
        return torch.nn.functional.normalize(pooled, dim=-1)


def export(folder: str, out: Path, pooling: str) -> None:
    """Trace with two sequences, one padded, so that the mask is part of the graph."""
    loaded = AutoModel.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32)
    loaded.config.use_cache = False
    ids = torch.randint(1000, 2000, (2, 16))
    mask = torch.ones_like(ids)
    mask[1, 9:] = 0
    named = {0: "batch", 1: "tokens"}
    with torch.no_grad():
        torch.onnx.export(
            Embedder(loaded.eval(), pooling),
            (ids, mask),
            str(out),
            input_names=["input_ids", "attention_mask"],
            output_names=["vectors"],
            dynamic_axes={"input_ids": named, "attention_mask": named, "vectors": {0: "batch"}},
            opset_version=17,
            dynamo=False,
        )
    if loaded.config.model_type == "bert":
        _fuse(out, loaded.config)


def _fuse(out: Path, config: Any) -> None:
    from onnxruntime.transformers import optimizer
    from onnxruntime.transformers.fusion_options import FusionOptions

    fused = optimizer.optimize_model(
        str(out),
        model_type="bert",
        num_heads=config.num_attention_heads,
        hidden_size=config.hidden_size,
        opt_level=1,
        optimization_options=FusionOptions("bert"),
    )
    fused.save_model_to_file(str(out.with_suffix(".fused.onnx")))


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    export(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
