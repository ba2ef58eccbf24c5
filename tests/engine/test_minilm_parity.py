"""The real MiniLM against sentence-transformers, with the same weights and lengths."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hedgerow_engine.engine import Engine
from hedgerow_shared.ragged import Lane, RaggedBatch
from tests.engine.conftest import OpenEngine, cosines
from tests.engine.texts import varied_texts

SentenceTransformer = pytest.importorskip("sentence_transformers").SentenceTransformer


@pytest.fixture(scope="module")
def oracle(minilm_folder: Path) -> Any:
    model = SentenceTransformer(str(minilm_folder), device="cpu")
    model.max_seq_length = 512
    return model


@pytest.fixture(scope="module")
def token_ids(oracle: Any) -> list[list[int]]:
    return oracle.tokenizer(varied_texts(), truncation=True, max_length=512)["input_ids"]


@pytest.fixture(scope="module")
def expected(oracle: Any) -> np.ndarray:
    return oracle.encode(varied_texts(), batch_size=8)


def embed(engine: Engine, sequences: list[Any]) -> np.ndarray:
    output = engine.step(RaggedBatch.of(sequences), Lane.QUERY).result()
    return np.stack([row[0] for row in output.rows])


def test_float32_vectors_are_those_of_sentence_transformers(
    minilm_folder: Path, open_engine: OpenEngine, token_ids: list[list[int]], expected: np.ndarray
) -> None:
    engine = open_engine(minilm_folder, max_seq_len=512)
    batches = [token_ids[i : i + 7] for i in range(0, 200, 7)]
    got = np.concatenate([embed(engine, batch) for batch in batches])
    assert cosines(got, expected).min() >= 0.999999
    assert np.abs(got - expected).max() < 1e-5


def test_bfloat16_stays_within_the_gate(
    minilm_folder: Path, open_engine: OpenEngine, token_ids: list[list[int]], expected: np.ndarray
) -> None:
    engine = open_engine(minilm_folder, max_seq_len=512, dtype="bfloat16")
    batches = [token_ids[i : i + 7] for i in range(0, 200, 7)]
    got = np.concatenate([embed(engine, batch) for batch in batches])
    assert cosines(got, expected).min() >= 0.9998


def test_a_batch_of_many_equals_batches_of_one(
    minilm_folder: Path, open_engine: OpenEngine, token_ids: list[list[int]]
) -> None:
    engine = open_engine(minilm_folder, max_seq_len=512)
    some = token_ids[:30]
    alone = np.concatenate([embed(engine, [ids]) for ids in some])
    together = embed(engine, some)
    assert cosines(alone, together).min() >= 0.999999


def test_the_longest_length_is_exact_too(
    minilm_folder: Path, open_engine: OpenEngine, oracle: Any
) -> None:
    engine = open_engine(minilm_folder, max_seq_len=512)
    ids = oracle.tokenizer("many words " * 600, truncation=True, max_length=512)["input_ids"]
    assert len(ids) == 512
    want = oracle.encode(["many words " * 600])
    assert cosines(embed(engine, [ids]), want).min() >= 0.999999
