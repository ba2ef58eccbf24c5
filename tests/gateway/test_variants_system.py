"""Other settings, with real processes: native token ids, a cross-encoder, poison, two gateways."""

from __future__ import annotations

import concurrent.futures
import json
import threading
import time

import httpx
import numpy as np
import pytest

from hedgerow_gateway.tokenizer import open_tokenizer
from hedgerow_scheduler.fake_engine import fake_vector
from hedgerow_shared.modelcard import read_card
from tests.gateway.conftest import train_unigram, train_wordpiece, write_model
from tests.gateway.stack import running_stack

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def poison(toy_folders):
    """A word of the toy vocabulary and its token id, at which the fake engine raises."""
    tokenizer = open_tokenizer(read_card(toy_folders["wordpiece"]), log=print)
    ids = tokenizer.encode(["the"], limit=64).input_ids.tolist()
    assert len(ids) == 3
    return "the", ids[1]


@pytest.fixture(scope="module")
def variants(tmp_path_factory, toy_folders, poison):
    """`toy` takes native ids and fails on the poison word; `pairs` is a cross-encoder."""
    root = tmp_path_factory.mktemp("variants")
    pairs = write_model(
        root / "pairs",
        train_wordpiece(),
        architectures=["BertForSequenceClassification"],
        id2label={"0": "LABEL_0"},
    )
    other = write_model(root / "other", train_unigram())
    models = (f"toy={toy_folders['wordpiece']}", f"pairs={pairs}", f"org/other={other}")
    with running_stack(root, *models) as stack:
        stack.worker("--fake-floor-ms", "0.2", "--fake-raise-id", str(poison[1]))
        stack.gateway("--token-ids", "native")
        stack.wait()
        yield stack


def post(stack, path, body, **headers):
    return httpx.post(f"{stack.url}{path}", json=body, headers=headers, timeout=30)


def test_native_token_ids_that_are_too_long_are_refused_where_cutting_is_not_wanted(variants):
    long, short = [5] * 65, [6]
    asked = [
        ("/v1/embeddings", {"input": [short, long]}, "input[1]"),
        ("/rerank", {"query": long, "documents": [short]}, "query"),
        ("/rerank", {"query": short, "documents": [short, long]}, "documents[1]"),
    ]
    for path, body, param in asked:
        assert post(variants, path, body).status_code == 200
        error = post(variants, path, body | {"truncate": "NONE"}).json()["error"]
        assert (error["code"], error["param"]) == ("context_length_exceeded", param)


def test_native_token_ids_are_embedded_as_they_are(variants):
    ids = [[5, 6, 7], [8]]
    data = post(variants, "/v1/embeddings", {"input": ids}).json()["data"]
    for item, sequence in zip(data, ids, strict=True):
        assert np.array_equal(np.array(item["embedding"], np.float32), fake_vector(sequence, 8))
    one = post(variants, "/v1/embeddings", {"input": [5, 6, 7]}).json()["data"]
    assert one == data[:1]


def test_native_token_ids_are_ranked_too(variants):
    body = post(variants, "/rerank", {"query": [5, 6], "documents": [[7], [5, 6], [8, 9]]}).json()
    assert body["results"][0]["index"] == 1
    assert body["results"][0]["relevance_score"] == pytest.approx(1, abs=1e-6)


def test_a_cross_encoder_scores_the_pairs_its_template_makes(variants):
    documents = ["one text", "another", "a third"]
    tokenizer = open_tokenizer(read_card(variants.folder / "pairs"), log=print)
    pairs = tokenizer.encode_pairs("what", documents, limit=64)
    logits = [float(fake_vector(pairs.batch(i, i + 1, None).input_ids, 1)[0]) for i in range(3)]
    asked = {"model": "pairs", "query": "what", "documents": documents}
    raw = post(variants, "/rerank", {**asked, "raw_scores": True}).json()["results"]
    soft = post(variants, "/rerank", asked).json()["results"]
    assert {r["index"]: r["relevance_score"] for r in raw} == dict(enumerate(logits))
    for result in soft:
        expected = 1 / (1 + np.exp(-logits[result["index"]]))
        assert result["relevance_score"] == pytest.approx(expected, abs=1e-6)


def test_an_alias_with_a_slash_is_an_alias_over_http_and_one_token_on_the_bus(variants):
    body = post(variants, "/v1/embeddings", {"model": "org/other", "input": "hello"}).json()
    assert body["model"] == "org/other"
    assert httpx.get(f"{variants.url}/v1/models/org/other").json()["id"] == "org/other"


def test_a_row_that_fails_refuses_the_request_and_says_which(variants, poison):
    response = post(variants, "/v1/embeddings", {"input": ["fine", poison[0], "good"]})
    body = response.json()
    assert response.status_code == 500
    assert [e["index"] for e in body["errors"]] == [1]
    assert body["error"]["code"] == "row_failed"
    assert response.headers["x-should-retry"] == "false"
    assert post(variants, "/v1/embeddings", {"input": "still here"}).status_code == 200


def test_a_partial_answer_has_the_good_rows_and_the_error_of_the_bad_one(variants, poison):
    asked = {"input": ["fine", poison[0], "good"]}
    body = post(variants, "/v1/embeddings", asked, **{"Hedgerow-Partial": "true"}).json()
    assert [item["embedding"] is None for item in body["data"]] == [False, True, False]
    assert body["errors"][0]["index"] == 1
    asked = {"query": "a query", "documents": ["fine", poison[0]]}
    ranked = post(variants, "/rerank", asked, **{"Hedgerow-Partial": "true"}).json()
    assert ranked["results"][1]["relevance_score"] is None
    assert ranked["errors"][0]["index"] == 1


def test_error_text_says_nothing_of_the_insides(variants, poison):
    text = json.dumps(post(variants, "/v1/embeddings", {"input": poison[0]}).json())
    assert "Traceback" not in text
    assert "/" not in text.replace("and/or", "")


def test_gateways_restarted_one_after_the_other_lose_no_request(tmp_path, toy_folders):
    with running_stack(tmp_path, f"toy={toy_folders['wordpiece']}") as stack:
        stack.worker("--fake-floor-ms", "2")
        stack.gateway("--reuse-port")
        stack.wait()
        port = stack.port
        share = ("--reuse-port", "--port", str(port))
        second = stack._start("hedgerow_gateway", "gateway", *share)
        stack.gateways.append(second)
        statuses, stop = [], threading.Event()

        def caller():
            while not stop.is_set():
                statuses.append(post(stack, "/v1/embeddings", {"input": "hello"}).status_code)

        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            running = [pool.submit(caller) for _ in range(3)]
            try:
                wait_for_line(stack, "gateway1.log", "listens on")
                stack.gateways[0].terminate()
                assert stack.gateways[0].wait(20) == 0
                third = stack._start("hedgerow_gateway", "gateway", *share)
                stack.gateways.append(third)
                wait_for_line(stack, "gateway2.log", "listens on")
                second.terminate()
                assert second.wait(20) == 0
                time.sleep(0.3)
            finally:
                stop.set()
            for future in running:
                future.result()
        assert set(statuses) == {200}, stack.logs()


def wait_for_line(stack, name, text):
    end = time.monotonic() + 30
    while text not in (stack.folder / name).read_text():
        assert time.monotonic() < end, stack.logs()
        time.sleep(0.05)
