"""Inputs of exact lengths, model shapes, and the score of a ranking."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from benchmarks.engine.adapters import passes, rectangles
from benchmarks.models import BERT_BASE, MINILM, QWEN3
from benchmarks.reference import load_ragged, save_ragged
from benchmarks.retrieval import mean_ndcg, ndcg, read_qrels
from benchmarks.text import Pool, read_corpus, standard_text


@pytest.fixture(scope="module")
def pool(minilm_folder: Path) -> Pool:
    return Pool(minilm_folder / "tokenizer.json", standard_text()[:200_000])


@pytest.mark.parametrize("length", [8, 16, 128, 4096])
def test_id_inputs_have_the_exact_length_and_differ(pool: Pool, length: int) -> None:
    found = pool.ids(length, 20, seed=1)
    assert {len(s) for s in found} == {length}
    assert all(s[0] == 101 and s[-1] == 102 for s in found)
    assert len({s.tobytes() for s in found}) == 20


def test_text_inputs_tokenize_to_nearly_the_wanted_length_and_differ(pool: Pool) -> None:
    found = pool.texts(512, 10, seed=2)
    lengths = [len(pool.encode(text)) for text in found]
    assert all(496 <= n <= 512 for n in lengths)
    assert len(set(found)) == 10


def test_the_same_seed_gives_the_same_inputs(pool: Pool) -> None:
    assert pool.texts(64, 3, seed=5) == pool.texts(64, 3, seed=5) != pool.texts(64, 3, seed=6)


def test_ragged_sequences_survive_their_file(tmp_path: Path) -> None:
    sequences = [np.arange(n, dtype=np.int32) for n in (3, 1, 7)]
    save_ragged(tmp_path / "x.npz", sequences)
    assert [s.tolist() for s in load_ragged(tmp_path / "x.npz")] == [s.tolist() for s in sequences]


@pytest.mark.parametrize(
    ("shape", "lengths", "gflop"),
    [
        pytest.param(MINILM, [16], 0.34, id="MiniLM 1x16"),
        pytest.param(MINILM, [128] * 32, 91.8, id="MiniLM 32x128"),
        pytest.param(BERT_BASE, [512], 96.6, id="BERT-base 1x512"),
        pytest.param(QWEN3, [512], 0.88 * 512 + 2 * 0.1147 * 512 * 512 / 1e3, id="Qwen3 1x512"),
    ],
)
def test_flops_are_those_of_the_architecture(shape, lengths: list[int], gflop: float) -> None:
    assert shape.flops(lengths) / 1e9 == pytest.approx(gflop, rel=0.01)


def test_rectangles_pad_to_the_longest_of_their_batch_and_keep_every_token() -> None:
    sequences = [np.full(n, n, np.int32) for n in (5, 40, 7, 40, 3)] * 10
    seen: dict[int, list[int]] = {}
    for chosen, ids, mask in rectangles(sequences):
        assert len(chosen) <= 32
        assert ids.shape[1] == max(len(sequences[i]) for i in chosen)
        for row, index in enumerate(chosen):
            seen[index] = ids[row][mask[row] == 1].tolist()
    assert seen == {i: s.tolist() for i, s in enumerate(sequences)}


def test_passes_fill_to_the_budget_and_hold_each_sequence_once() -> None:
    sequences = [np.zeros(n, np.int32) for n in (300, 20, 700, 100, 250)]
    found = passes(sequences, 512)
    assert sorted(i for chosen in found for i in chosen) == list(range(5))
    assert all(sum(len(sequences[i]) for i in chosen[:-1]) < 512 for chosen in found)


def test_ndcg_is_one_for_the_ideal_ranking_and_discounts_by_the_logarithm() -> None:
    judged = {"a": 2.0, "b": 1.0, "c": 0.0, "d": -1.0}
    assert ndcg(["a", "b", "c"], judged) == pytest.approx(1.0)
    ideal = 2 + 1 / math.log2(3)
    assert ndcg(["b", "d", "a"], judged) == pytest.approx((1 + 2 / math.log2(4)) / ideal)
    assert ndcg(["x"], judged) == 0.0
    assert ndcg(["c"], {"c": 0.0}) == 0.0


def test_queries_without_a_relevant_document_do_not_count() -> None:
    documents = np.eye(3, dtype=np.float32)
    queries = documents[[0, 1]]
    qrels = {"q0": {"d0": 1.0}, "q1": {"d1": 0.0}}
    assert mean_ndcg(queries, documents, ["q0", "q1"], ["d0", "d1", "d2"], qrels) == (1.0, 1)


def test_a_corpus_in_cranfield_form_is_read_with_title_and_text(tmp_path: Path) -> None:
    (tmp_path / "corpus.jsonl").write_text(
        '{"_id": 1, "title": "A title", "text": "and text"}\n'
        '{"_id": "2", "title": "", "text": ""}\n'
    )
    (tmp_path / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\n1\t2\t1\n1\t3\t0\n")
    found = read_corpus(tmp_path / "corpus.jsonl")
    assert [(d.id, d.text) for d in found] == [("1", "A title and text"), ("2", "")]
    assert read_qrels(tmp_path / "qrels.tsv") == {"1": {"2": 1.0, "3": 0.0}}
