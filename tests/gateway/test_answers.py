"""Answers: what is on the wire decodes to the vectors that came in; errors stay with their row."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import msgpack
import numpy as np
import pytest

from hedgerow_gateway import answers
from hedgerow_gateway.answers import EmbedAnswer, cosine, embed_json, embed_msgpack, rerank_body
from hedgerow_gateway.failures import RowsFailedError, check_rows, error_body, retry_headers
from hedgerow_gateway.models import Models, ServedModel
from hedgerow_gateway.schema import Rules, read_embed, read_rerank
from hedgerow_gateway.tokenizer import open_tokenizer
from hedgerow_shared.errors import HedgerowError, NoWorkerError, OverloadedError, RowError
from hedgerow_shared.modelcard import read_card

RULES = Rules(max_inputs=100_000)
BAD = RowError("not a finite number")


@pytest.fixture(scope="module")
def models(toy_folders: dict[str, Path]) -> Models:
    card = read_card(toy_folders["wordpiece"])
    tokenizer = open_tokenizer(card, log=print)
    return Models([ServedModel(alias="toy", card=card, tokenizer=tokenizer, fingerprint="f")])


def answer(models: Models, count: int, encoding: str = "float", bad: tuple[int, ...] = ()):
    texts = [f"word {i}" for i in range(count - 1)] + ["word " * 100]
    request = read_embed({"input": texts, "encoding_format": encoding}, models, RULES)
    encoded = request.model.tokenizer.encode(texts, limit=16)
    vectors = np.random.default_rng(1).standard_normal((count, 8)).astype(np.float32)
    rows = [BAD if i in bad else (vectors[i],) for i in range(count)]
    return vectors, EmbedAnswer(request=request, encoded=encoded, rows=rows, fingerprint="abc")


@pytest.mark.parametrize("count", [1, 3, 5000], ids=["one", "few", "in-pieces"])
@pytest.mark.parametrize("encoding", ["float", "base64"])
def test_json_carries_every_vector_exactly_whatever_the_number_of_pieces(models, count, encoding):
    vectors, made = answer(models, count, encoding)
    body = json.loads(b"".join(embed_json(made)))
    assert [d["index"] for d in body["data"]] == list(range(count))
    for row, vector in zip(body["data"], vectors, strict=True):
        found = row["embedding"]
        if encoding == "base64":
            found = np.frombuffer(base64.b64decode(found), "<f4")
        assert np.array_equal(np.array(found, np.float32), vector)
    assert (body["object"], body["model"]) == ("list", "toy")
    assert body["usage"]["prompt_tokens"] == made.encoded.num_tokens
    assert body["hedgerow"]["fingerprint"] == "abc"
    assert len(body["hedgerow"]["inputs"]) == count
    assert body["hedgerow"]["inputs"][-1] == {
        "tokens_seen": made.request.model.tokenizer.encode(["word " * 100], limit=9999).num_tokens,
        "tokens_used": 16,
        "truncated": True,
    }
    assert "errors" not in body


def test_both_ways_of_making_json_give_the_same_object(models, monkeypatch):
    _, made = answer(models, 7, bad=(2,))
    whole = b"".join(embed_json(made))
    monkeypatch.setattr(answers, "_PIECE_BYTES", 200)
    pieces = list(embed_json(made))
    assert len(pieces) > 5
    assert json.loads(b"".join(pieces)) == json.loads(whole)


def test_msgpack_carries_one_block_with_its_shape(models):
    vectors, made = answer(models, 5)
    body = msgpack.unpackb(embed_msgpack(made))
    assert (body["dtype"], body["shape"]) == ("float32", [5, 8])
    assert np.array_equal(np.frombuffer(body["data"], "<f4").reshape(5, 8), vectors)


def test_a_failed_row_is_null_beside_its_error_and_zeros_in_msgpack(models):
    _, made = answer(models, 3, bad=(1,))
    body = json.loads(b"".join(embed_json(made)))
    assert body["data"][1]["embedding"] is None
    assert body["data"][1]["error"] == body["errors"][0]
    assert body["errors"] == [{"index": 1, "code": "row_failed", "message": BAD.message}]
    packed = msgpack.unpackb(embed_msgpack(made))
    assert not np.frombuffer(packed["data"], "<f4").reshape(3, 8)[1].any()
    assert packed["errors"] == body["errors"]


def test_the_lower_bound_on_an_answers_size_is_one(models):
    for encoding in ("float", "base64"):
        for count in (1, 50):
            _, made = answer(models, count, encoding)
            assert answers.least_json_bytes(count, 8, encoding) <= len(b"".join(embed_json(made)))


def test_rows_that_failed_refuse_the_request_unless_partial_answers_are_wanted():
    rows = [(np.zeros(2),), BAD, BAD]
    with pytest.raises(RowsFailedError) as raised:
        check_rows(rows, partial=False, field="documents")
    body = error_body(raised.value)
    assert raised.value.status == 500
    assert [e["index"] for e in body["errors"]] == [1, 2]
    assert body["error"]["param"] == "documents[1]"
    check_rows(rows, partial=True)
    with pytest.raises(RowsFailedError):
        check_rows([BAD, BAD], partial=True)
    with pytest.raises(OverloadedError):
        check_rows([OverloadedError("full")] * 2, partial=True)


def rerank(models, scores, failed=(), **asked):
    documents = [f"doc {i}" for i in range(len(scores))]
    request = read_rerank({"query": "q", "documents": documents, **asked}, models, RULES)
    encoded = request.model.tokenizer.encode(["q", *documents], limit=16)
    return rerank_body(request, encoded, np.array(scores, np.float32), failed, "abc", "id-1")


def test_results_are_ordered_by_score_and_ties_by_index(models):
    body = rerank(models, [0.1, 0.9, 0.5, 0.9])
    assert [r["index"] for r in body["results"]] == [1, 3, 2, 0]
    assert body["results"][0]["relevance_score"] == pytest.approx(0.9)
    assert len(body["hedgerow"]["inputs"]) == 4
    assert "document" not in body["results"][0]


def test_top_n_and_return_documents_are_obeyed(models):
    body = rerank(models, [0.1, 0.9, 0.5], top_n=2, return_documents=True)
    assert [r["document"]["text"] for r in body["results"]] == ["doc 1", "doc 2"]


def test_a_failed_document_comes_last_with_its_error_and_no_score(models):
    body = rerank(models, [0.1, np.nan, 0.5], failed=[(1, BAD)])
    assert [r["index"] for r in body["results"]] == [2, 0, 1]
    assert body["results"][-1]["relevance_score"] is None
    assert body["errors"][0]["index"] == 1


def test_cosine_is_that_of_float64_and_zero_for_a_zero_vector():
    rng = np.random.default_rng(2)
    query, documents = rng.standard_normal(64), rng.standard_normal((10, 64)) * 7
    expected = documents @ query / np.linalg.norm(documents, axis=1) / np.linalg.norm(query)
    found = cosine(query.astype(np.float32), [d.astype(np.float32) for d in documents])
    assert np.allclose(found, expected, atol=1e-6)
    assert cosine(query, [np.zeros(64)])[0] == 0


def test_who_may_come_back_is_told_when_in_seconds_and_in_milliseconds():
    headers = retry_headers(OverloadedError("full", retry_after_s=0.25))
    assert headers == {"Retry-After": "1", "retry-after-ms": "250"}
    assert retry_headers(NoWorkerError("none"))["Retry-After"] == "1"
    assert retry_headers(HedgerowError("bug")) == {"x-should-retry": "false"}


@pytest.mark.parametrize("count", [1000, 2048, 20_000])
def test_a_long_text_is_reported_as_cut_whether_or_not_it_was_read_to_its_end(models, count):
    tokenizer = models.get("toy").tokenizer
    encoded = tokenizer.encode(["word " * count], limit=256)
    (report,) = answers.reports(encoded, 0, 1)
    assert report["truncated"] is True
    assert report["tokens_seen"] > report["tokens_used"] == 256


def test_tokenize_names_its_fingerprint_apart_from_that_of_vectors(models):
    model = models.get("toy")
    body = answers.tokenize_body(model, model.tokenizer.encode(["word"], limit=16), None)
    assert body["hedgerow"]["tokenizer_fingerprint"] == "f"
    assert "fingerprint" not in body["hedgerow"]
