"""Pooling that leaves the prompt out, on both executors, against sentence-transformers' own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers.sentence_transformer.modules import Pooling

from hedgerow_shared.ragged import Lane, OutputSpec, RaggedBatch
from tests.engine.conftest import OpenEngine, cosines
from tests.engine.tiny import hidden_of, save, tiny_bert, token_batches, write_modules

PROMPT = 5
LENGTHS = (12, 40, 6, 70, 12)
MODES = ["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]


def bert(folder: Path, modes: list[str]) -> tuple[object, Path]:
    model = tiny_bert()
    save(folder, model)
    pooling = {"pooling_mode": modes, "include_prompt": False}
    write_modules(folder, "Transformer", "Pooling", pooling=pooling)
    return model, folder


def with_prompts(sequences: list[list[int]], prompts: list[int]) -> RaggedBatch:
    plain = RaggedBatch.of(sequences, OutputSpec())
    return RaggedBatch(
        plain.input_ids,
        plain.cu_seqlens,
        plain.outputs,
        prompt_len=np.array(prompts, np.int32),
    )


@pytest.mark.parametrize("executor", ["native", "packed"])
@pytest.mark.parametrize(
    "modes", [*([m] for m in MODES), ["cls", "weightedmean", "max"]], ids="+".join
)
def test_the_prompt_is_left_out_as_sentence_transformers_does(
    tmp_path: Path, open_engine: OpenEngine, modes: list[str], executor: str
) -> None:
    model, folder = bert(tmp_path / "m", modes)
    engine = open_engine(folder, cpu_executor=executor)
    sequences = token_batches(80, LENGTHS)
    pooling = Pooling(64, modes if len(modes) > 1 else modes[0], include_prompt=False)
    for prompt in (PROMPT, 0):
        batch = with_prompts(sequences, [prompt] * len(sequences))
        rows = engine.step(batch, Lane.QUERY).result().rows
        want = [_pooled(pooling, hidden_of(model, ids), prompt) for ids in sequences]
        assert cosines([row[0] for row in rows], want).min() > 0.99999


def _pooled(pooling: Pooling, states: np.ndarray, prompt: int) -> np.ndarray:
    features = {
        "token_embeddings": torch.from_numpy(states)[None],
        "attention_mask": torch.ones(1, len(states)).long(),
        "prompt_length": prompt,
    }
    return pooling(features)["sentence_embedding"][0].numpy()


def test_both_executors_weight_the_tokens_of_a_span_alike(
    tmp_path: Path, open_engine: OpenEngine
) -> None:
    _, folder = bert(tmp_path / "m", ["weightedmean", "cls"])
    plain = RaggedBatch.of(token_batches(80, LENGTHS), OutputSpec())
    spans = np.array([[1, 3, 20], [1, 20, 40], [3, 0, 7]], np.int32)
    batch = RaggedBatch(plain.input_ids, plain.cu_seqlens, plain.outputs, spans=spans)
    native, packed = (
        open_engine(folder, cpu_executor=kind).step(batch, Lane.QUERY).result().rows
        for kind in ("native", "packed")
    )
    for one, other in zip(native, packed, strict=True):
        assert cosines(np.atleast_2d(one[0]), np.atleast_2d(other[0])).min() > 0.99999
