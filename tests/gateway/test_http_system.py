"""The HTTP side with real processes: a bus, a fake worker, a gateway."""

from __future__ import annotations

import base64
import concurrent.futures
import gzip
import json
import socket
import subprocess
import sys
import threading
import time
import zlib

import httpx
import msgpack
import numpy as np
import pytest

from hedgerow_gateway.tokenizer import open_tokenizer
from hedgerow_scheduler.fake_engine import fake_vector
from hedgerow_shared.modelcard import read_card
from tests.gateway.bad_input import CASES, raw, read
from tests.gateway.stack import running_stack

pytestmark = pytest.mark.system

PATHS = {"embed": "/v1/embeddings", "rerank": "/rerank", "tokenize": "/tokenize"}


@pytest.fixture(scope="module")
def client(stack):
    with httpx.Client(base_url=stack.url, timeout=60) as found:
        yield found


@pytest.fixture(scope="module")
def tokenizer(toy_folders):
    return open_tokenizer(read_card(toy_folders["wordpiece"]), log=print)


def expected(tokenizer, text):
    return fake_vector(tokenizer.encode([text], limit=64).input_ids, 8)


def embed(client, **body):
    return client.post("/v1/embeddings", json=body)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_wrong_request_is_answered_with_its_code_and_every_path(client, case):
    route, body, status, code, paths = CASES[case]
    response = client.post(PATHS[route], content=raw(body))
    assert response.status_code == status, response.text
    error = read(response.content)
    assert error["error"]["code"] == code
    assert ([d["param"] for d in error["detail"]] or [error["error"]["param"]]) == paths
    assert embed(client, input="still here").status_code == 200


def test_vectors_are_those_of_the_model_in_both_encodings(client, tokenizer):
    texts = ["hello there", "a second text", "word " * 300]
    floats = embed(client, input=texts).json()
    packed = embed(client, input=texts, encoding_format="base64").json()
    for i, text in enumerate(texts):
        vector = expected(tokenizer, text)
        assert np.array_equal(np.array(floats["data"][i]["embedding"], np.float32), vector)
        raw_bytes = base64.b64decode(packed["data"][i]["embedding"])
        assert np.array_equal(np.frombuffer(raw_bytes, "<f4"), vector)
    reports = floats["hedgerow"]["inputs"]
    assert [r["truncated"] for r in reports] == [False, False, True]
    assert floats["usage"]["prompt_tokens"] == sum(r["tokens_used"] for r in reports)


def test_a_single_text_is_a_list_of_one(client, tokenizer):
    body = embed(client, input="hello there").json()
    assert [d["index"] for d in body["data"]] == [0]
    assert body["data"][0]["embedding"] == pytest.approx(
        expected(tokenizer, "hello there").tolist()
    )


def test_dimensions_cut_and_normalise_again(client, tokenizer):
    body = embed(client, input="hello there", dimensions=3).json()
    cut = expected(tokenizer, "hello there")[:3]
    assert body["data"][0]["embedding"] == pytest.approx(
        (cut / np.linalg.norm(cut)).tolist(), abs=1e-6
    )


def test_msgpack_is_spoken_over_http_too(client, tokenizer):
    response = client.post(
        "/v1/embeddings",
        content=msgpack.packb({"input": ["hello there"]}),
        headers={"Content-Type": "application/msgpack"},
    )
    body = msgpack.unpackb(response.content)
    assert response.headers["content-type"] == "application/msgpack"
    assert np.array_equal(np.frombuffer(body["data"], "<f4"), expected(tokenizer, "hello there"))


def test_thousands_of_inputs_come_back_in_order(client, tokenizer):
    texts = [f"document number {i} about things" for i in range(5000)]
    body = embed(client, input=texts, encoding_format="base64").json()
    for i in (0, 1, 7, 8, 2499, 4999):
        found = np.frombuffer(base64.b64decode(body["data"][i]["embedding"]), "<f4")
        assert np.array_equal(found, expected(tokenizer, texts[i]))
    assert len(body["hedgerow"]["inputs"]) == 5000


def test_a_word_of_five_megabytes_is_cut_and_reported(client):
    body = embed(client, input="x" * 5_000_000).json()
    assert body["hedgerow"]["inputs"][0]["tokens_used"] <= 64
    long = embed(client, input="some words " * 450_000).json()["hedgerow"]["inputs"][0]
    assert long["truncated"] and long["tokens_seen_at_least"] and long["tokens_used"] == 64


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_a_bi_encoder_ranks_by_cosine(client, tokenizer, path):
    documents = ["Paris is the capital", "bananas", {"text": "a list of cities"}]
    body = client.post(
        path, json={"query": "capital", "documents": documents, "return_documents": True}
    ).json()
    query = expected(tokenizer, "capital")
    texts = [d if isinstance(d, str) else d["text"] for d in documents]
    scores = [float(expected(tokenizer, t) @ query) for t in texts]
    assert [r["index"] for r in body["results"]] == np.argsort(-np.array(scores)).tolist()
    for result in body["results"]:
        assert result["relevance_score"] == pytest.approx(scores[result["index"]], abs=1e-5)
        assert result["document"] == {"text": texts[result["index"]]}
    assert body["meta"]["tokens"]["input_tokens"] == body["usage"]["total_tokens"]


def test_tokenize_shows_the_ids_with_their_specials(client, tokenizer):
    body = client.post("/tokenize", json={"input": ["hello there", "[SEP]"]}).json()
    for text, ids in zip(["hello there", "[SEP]"], body["token_ids"], strict=True):
        assert ids == tokenizer.encode([text], limit=64).input_ids.tolist()


def test_models_are_listed_with_what_clients_ask_for(client):
    listed = client.get("/v1/models").json()
    assert listed["object"] == "list"
    model = listed["data"][0]
    assert (model["id"], model["dimensions"], model["max_input_tokens"]) == ("toy", 8, 64)
    assert model["workers"] == 1
    assert client.get("/v1/models/toy").json()["id"] == "toy"
    assert client.get("/v1/models/other").status_code == 404


def test_a_body_over_the_limit_is_refused_before_it_is_read(client):
    response = client.post("/v1/embeddings", content=b" " * 8_000_001)
    assert response.status_code == 413
    assert response.json()["error"]["code"] == "too_large"


def test_a_compressed_body_counts_by_what_it_becomes(client):
    packed = gzip.compress(b'{"input": "' + b"a " * 6_000_000 + b'"}')
    assert len(packed) < 100_000
    headers = {"Content-Encoding": "gzip"}
    response = client.post("/v1/embeddings", content=packed, headers=headers)
    assert response.status_code == 413
    small = gzip.compress(b'{"input": "hello there"}')
    assert client.post("/v1/embeddings", content=small, headers=headers).status_code == 200


@pytest.mark.parametrize(
    ("encoding", "body", "status", "code"),
    [
        ("gzip", b'{"input": "plain"}', 400, "invalid_input"),
        ("gzip", gzip.compress(b'{"input": "cut"}' * 99)[:-9], 400, "invalid_input"),
        ("deflate", b'{"input": "plain"}', 400, "invalid_input"),
        ("br", b"anything", 415, "unsupported_encoding"),
        ("zstd", b"anything", 415, "unsupported_encoding"),
        ("gzip, gzip", b"anything", 415, "unsupported_encoding"),
    ],
)
def test_a_body_that_is_not_packed_as_it_says_is_the_callers_fault(
    client, stack, encoding, body, status, code
):
    response = client.post("/v1/embeddings", content=body, headers={"Content-Encoding": encoding})
    assert (response.status_code, response.json()["error"]["code"]) == (status, code)
    assert "Traceback" not in stack.logs()


@pytest.mark.parametrize(
    ("encoding", "pack"),
    [
        ("gzip", gzip.compress),
        ("deflate", zlib.compress),
        ("deflate", lambda b: zlib.compress(b)[2:-4]),
    ],
    ids=["gzip", "zlib", "raw"],
)
def test_packed_bodies_are_read(client, tokenizer, encoding, pack):
    text = "hello there"
    body = pack(json.dumps({"input": text}).encode())
    response = client.post("/v1/embeddings", content=body, headers={"Content-Encoding": encoding})
    found = response.json()["data"][0]["embedding"]
    assert found == pytest.approx(expected(tokenizer, text).tolist())


def test_a_body_of_unknown_length_is_read_and_limited_all_the_same(client):
    def parts(count):
        yield b'{"input": "'
        for _ in range(count):
            yield b"some words " * 1000
        yield b'"}'

    assert client.post("/v1/embeddings", content=parts(10)).status_code == 200
    assert client.post("/v1/embeddings", content=parts(1000)).status_code == 413
    assert embed(client, input="still here").status_code == 200


def half_a_body(port: int, *headers: str) -> socket.socket:
    """A connection that announces half a megabyte and sends one byte of them."""
    stalled = socket.create_connection(("127.0.0.1", port))
    lines = ["POST /v1/embeddings HTTP/1.1", "Host: x", "Content-Length: 500000", *headers]
    stalled.sendall(("\r\n".join(lines) + "\r\n\r\n{").encode())
    return stalled


def test_connections_that_send_nothing_take_no_room_from_others(client, stack):
    stalled = [half_a_body(stack.port) for _ in range(8)]
    time.sleep(0.2)
    for _ in range(5):
        assert embed(client, input="others are served").status_code == 200
    for connection in stalled:
        connection.close()


def test_a_body_that_does_not_come_ends_with_the_time_of_its_request(stack):
    with half_a_body(stack.port, "Hedgerow-Ttl-Ms: 300") as stalled:
        stalled.settimeout(10)
        answer = stalled.recv(65536).decode()
    assert answer.startswith("HTTP/1.1 504") and "1 of 500000 bytes" in answer


@pytest.mark.parametrize(
    "text",
    [
        b"GET /v1/models HTTP/1.1\r\nHost: x\r\nBad Header: 1\r\n\r\n",
        b"POST /rerank HTTP/1.1\r\nHost: x\r\nContent-Length: many\r\n\r\n",
        b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"no HTTP at all\r\n\r\n",
    ],
    ids=["header", "length", "long", "noise"],
)
def test_what_is_no_http_is_told_in_the_usual_body_and_not_in_the_log(client, stack, text):
    with socket.create_connection(("127.0.0.1", stack.port), timeout=10) as plain:
        plain.sendall(text)
        answer = b"".join(iter(lambda: plain.recv(65536), b""))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head[8:13] == b" 400 " and b"x-request-id" in head.lower()
    assert json.loads(body)["error"]["code"] == "unreadable_request"
    assert "Traceback" not in (stack.folder / "gateway0.log").read_text()
    assert embed(client, input="still here").status_code == 200


@pytest.mark.parametrize(
    "body",
    [b'{"\\ud800": "\\udc01"}', b'{"input": {"\\ud800": "\\udc01"}}'],
    ids=["key", "inner key"],
)
def test_a_lone_surrogate_in_a_key_is_refused_with_a_path_that_can_be_written(client, body):
    response = client.post("/v1/embeddings", content=body)
    assert response.status_code == 400, response.text
    assert "\\ud800" in response.json()["error"]["param"]


def test_errors_say_what_was_found(client):
    body = {"input": "x", "dimensions": 9999, "encoding_format": "hex"}
    found = {d["param"]: d["message"] for d in embed(client, **body).json()["detail"]}
    assert found["dimensions"].endswith("found 9999")
    assert found["encoding_format"].endswith('found "hex"')


def test_unknown_paths_and_methods_are_told_in_the_usual_body(client):
    missing = client.get("/v1/nothing")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "route_not_found")
    wrong = client.get("/v1/embeddings")
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (405, "method_not_allowed")
    assert wrong.headers["allow"] == "POST"


def test_no_header_of_the_request_comes_back(client):
    response = client.post(
        "/v1/embeddings",
        json={"input": "a"},
        headers={"Authorization": "Bearer secret", "X-Request-Id": "mine", "X-Other": "x"},
    )
    assert "secret" not in str(response.headers)
    assert "x-other" not in response.headers
    assert response.headers["x-request-id"] != "mine"


def test_a_time_too_short_for_the_work_is_a_504(client):
    texts = [f"some words for document {n}" for n in range(4000)]
    headers = {"Hedgerow-Ttl-Ms": "20"}
    response = client.post("/v1/embeddings", json={"input": texts}, headers=headers)
    assert response.status_code == 504
    assert response.json()["error"]["code"] == "deadline_exceeded"


def test_metrics_show_requests_and_the_workers_figures(client):
    embed(client, input="count me")
    end = time.monotonic() + 20
    while "hedgerow_worker_batches" not in (text := client.get("/metrics").text):
        assert time.monotonic() < end
        time.sleep(0.2)
    assert 'hedgerow_requests_total{code="ok",model="toy",route="embed",transport="http"}' in text
    assert "hedgerow_gateway_workers 1.0" in text


def test_a_caller_who_goes_away_takes_his_work_along(tmp_path, toy_folders):
    with running_stack(tmp_path, f"toy={toy_folders['wordpiece']}") as stack:
        stack.worker("--fake-ms", "4000")
        stack.gateway()
        stack.wait()
        texts = [f"some words for document {n}" for n in range(2000)]
        body = json.dumps({"input": texts}).encode()
        head = f"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        with socket.create_connection(("127.0.0.1", stack.port)) as caller:
            caller.sendall(head.encode() + body)
            until(lambda: figure(stack.url, "hedgerow_gateway_inflight_requests") == 1)
            time.sleep(0.3)
        until(lambda: figure(stack.url, "hedgerow_gateway_inflight_requests") == 0)
        assert figure(stack.url, "hedgerow_gateway_chunks_cancelled") > 0
        until(lambda: figure(stack.url, "hedgerow_worker_cancelled") > 0)


def test_without_workers_the_gateway_lives_is_not_ready_and_says_503_at_once(tmp_path, toy_folders):
    with running_stack(tmp_path, f"toy={toy_folders['wordpiece']}") as stack:
        stack.gateway()
        stack.wait(503)
        assert httpx.get(f"{stack.url}/health/live").status_code == 200
        ready = httpx.get(f"{stack.url}/health/ready")
        assert ready.json()["models_without_workers"] == ["toy"]
        began = time.monotonic()
        response = httpx.post(f"{stack.url}/v1/embeddings", json={"input": "a"})
        assert time.monotonic() - began < 2
        assert (response.status_code, response.json()["error"]["code"]) == (503, "no_worker")
        message = response.json()["error"]["message"]
        assert message == "no worker serves model 'toy' at the moment"
        assert response.headers["retry-after"] == "1"
        assert int(response.headers["retry-after-ms"]) > 0


def test_a_request_that_finds_nobody_makes_the_gateway_not_ready(tmp_path, toy_folders):
    with running_stack(tmp_path, f"toy={toy_folders['wordpiece']}") as stack:
        worker = stack.worker()
        stack.gateway("--fleet-poll-s", "60")
        stack.wait()
        worker.kill()
        worker.wait()
        until(lambda: httpx.post(f"{stack.url}/v1/embeddings", json={"input": "a"}).is_error)
        assert httpx.get(f"{stack.url}/health/ready").status_code == 503


def test_two_workers_one_killed_mid_work_costs_no_request(tmp_path, toy_folders):
    with running_stack(tmp_path, f"toy={toy_folders['wordpiece']}") as stack:
        victim = stack.worker("--fake-floor-ms", "20")
        stack.worker("--fake-floor-ms", "20")
        stack.gateway("--attempt-unknown-s", "0.5")
        stack.wait()
        until(lambda: figure(stack.url, "hedgerow_gateway_workers") == 2)
        statuses = under_load(stack.url, victim.kill, seconds=2.5)
        assert set(statuses) == {200}


def test_a_gateway_told_to_stop_finishes_what_it_took(tmp_path, toy_folders):
    with running_stack(tmp_path, f"toy={toy_folders['wordpiece']}") as stack:
        stack.worker("--fake-floor-ms", "1000")
        gateway = stack.gateway()
        stack.wait()
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            sent = [
                pool.submit(
                    httpx.post, f"{stack.url}/v1/embeddings", json={"input": f"{i}"}, timeout=30
                )
                for i in range(8)
            ]
            until(lambda: figure(stack.url, "hedgerow_gateway_inflight_requests") == 8)
            gateway.terminate()
            assert [future.result().status_code for future in sent] == [200] * 8
        assert gateway.wait(10) == 0


def test_a_gateway_told_to_stop_answers_whoever_had_just_connected(tmp_path, toy_folders):
    with running_stack(tmp_path, f"toy={toy_folders['wordpiece']}") as stack:
        stack.worker()
        gateway = stack.gateway()
        stack.wait()
        with socket.create_connection(("127.0.0.1", stack.port), timeout=10) as silent:
            until(lambda: figure(stack.url, "hedgerow_gateway_workers") == 1)
            gateway.terminate()
            time.sleep(0.4)  # a client that was busy between connecting and asking
            silent.sendall(b"GET /health/live HTTP/1.1\r\nHost: h\r\n\r\n")
            assert silent.recv(4096).startswith(b"HTTP/1.1 200")
        assert gateway.wait(10) == 0


def test_a_gateway_told_to_stop_waits_for_no_body_that_does_not_come(tmp_path, toy_folders):
    with running_stack(tmp_path / "s", f"toy={toy_folders['wordpiece']}") as stack:
        gateway = stack.gateway()
        stack.worker()
        stack.wait()
        with half_a_body(stack.port):
            time.sleep(0.3)
            began_s = time.monotonic()
            gateway.terminate()
            assert gateway.wait(20) == 0
            assert time.monotonic() - began_s < 10


def test_every_path_described_is_served(client):
    described = client.get("/openapi.json").json()
    for path, methods in described["paths"].items():
        for method in methods:
            response = client.request(method, path.format(alias="toy", job="j"))
            code = "" if response.status_code == 200 else response.json()["error"]["code"]
            assert code not in ("route_not_found", "method_not_allowed"), (path, method)


def test_answers_are_as_described(client):
    described = client.get("/openapi.json").json()
    schemas = described["components"]["schemas"]
    bodies = {
        "EmbedAnswer": embed(client, input=["a", "b"]).json(),
        "RerankAnswer": client.post("/rerank", json={"query": "a", "documents": ["b"]}).json(),
        "TokenizeAnswer": client.post("/tokenize", json={"input": "a"}).json(),
        "Model": client.get("/v1/models/toy").json(),
        "Error": embed(client).json(),
    }
    for name, body in bodies.items():
        assert (
            set(schemas[name].get("required", ())) <= set(body) <= set(schemas[name]["properties"])
        )


def test_a_busy_port_is_one_line_that_names_the_flag(stack, toy_folders):
    done = subprocess.run(
        [
            sys.executable, "-m", "hedgerow_gateway", "--nats-url", stack.nats.url,
            "--model", f"toy={toy_folders['wordpiece']}", "--port", str(stack.port),
        ],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 2
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("hedgerow-gateway: ") and "--port" in last
    assert "Traceback" not in done.stderr


def test_no_bus_is_one_line_that_names_the_address(toy_folders):
    done = subprocess.run(
        [
            sys.executable, "-m", "hedgerow_gateway", "--nats-url", "nats://127.0.0.1:1",
            "--model", f"toy={toy_folders['wordpiece']}", "--port", "0",
        ],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 2
    assert "127.0.0.1:1" in done.stderr.strip().splitlines()[-1]
    assert "Traceback" not in done.stderr


def figure(url, name):
    """The sum of a metric over its labels; 0 while it is not there."""
    lines = httpx.get(f"{url}/metrics").text.splitlines()
    found = [line for line in lines if line.split("{")[0].split(" ")[0] == name]
    return sum(float(line.rsplit(" ", 1)[1]) for line in found)


def until(true, seconds=20):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.05)


def under_load(url, act, *, seconds, callers=4):
    """Statuses of requests sent by several callers all the while; `act` runs in the middle."""
    statuses, stop = [], threading.Event()

    def caller():
        with httpx.Client(base_url=url, timeout=30) as client:
            while not stop.is_set():
                statuses.append(embed(client, input="hello there").status_code)

    with concurrent.futures.ThreadPoolExecutor(callers) as pool:
        running = [pool.submit(caller) for _ in range(callers)]
        time.sleep(seconds / 2)
        act()
        time.sleep(seconds / 2)
        stop.set()
        for future in running:
            future.result()
    return statuses
