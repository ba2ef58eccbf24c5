"""A plain nats-py client with no code of ours: what any language can do with its NATS library."""

from __future__ import annotations

import json

import msgpack
import nats
import nats.errors
import numpy as np
import pytest

pytestmark = pytest.mark.system


@pytest.fixture
async def connection(served):
    found = await nats.connect(served.nats.url)
    yield found
    await found.close()


async def test_a_text_becomes_a_vector(connection):
    reply = await connection.request("hedgerow.v1.embed.minilm", b'{"input":"hello"}', timeout=10)
    body = json.loads(reply.data)
    assert len(body["data"][0]["embedding"]) == 384
    assert body["usage"]["total_tokens"] == 3


async def test_msgpack_comes_back_as_raw_floats(connection):
    packed = msgpack.packb({"input": ["hello", "world"]})
    reply = await connection.request("hedgerow.v1.embed.minilm", packed, timeout=10)
    body = msgpack.unpackb(reply.data)
    vectors = np.frombuffer(body["data"], "<f4").reshape(body["shape"])
    assert vectors.shape == (2, 384)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(1, abs=1e-5)


async def test_documents_are_ranked(connection):
    asked = {"query": "capital of France", "documents": ["Paris", "Berlin"], "top_n": 1}
    subject = "hedgerow.v1.rerank.minilm"
    reply = await connection.request(subject, json.dumps(asked).encode(), timeout=10)
    assert len(json.loads(reply.data)["results"]) == 1


async def test_models_are_listed(connection):
    reply = await connection.request("hedgerow.v1.models", b"", timeout=10)
    assert json.loads(reply.data)["data"][0]["id"] == "minilm"


async def test_an_error_is_in_the_headers_of_micro_services_and_in_the_body(connection):
    reply = await connection.request("hedgerow.v1.embed.minilm", b'{"input":[]}', timeout=10)
    assert reply.headers["Nats-Service-Error-Code"] == "400"
    assert "input" in reply.headers["Nats-Service-Error"]
    assert json.loads(reply.data)["error"]["param"] == "input"


async def test_garbage_is_a_400_and_the_next_request_is_fine(connection):
    for garbage in (b"\x00\xff\x13", b"\x81\xa5", b"{", b"\xdf" + b"\xff" * 40):
        reply = await connection.request("hedgerow.v1.embed.minilm", garbage, timeout=10)
        assert reply.headers["Nats-Service-Error-Code"] == "400"
    await test_a_text_becomes_a_vector(connection)


async def test_an_unknown_model_has_no_responders(connection):
    with pytest.raises(nats.errors.NoRespondersError):
        await connection.request("hedgerow.v1.embed.nope", b'{"input":"a"}', timeout=10)


async def test_discovery_answers_a_ping(connection):
    inbox = connection.new_inbox()
    replies = await connection.subscribe(inbox)
    await connection.publish("$SRV.PING", b"", reply=inbox)
    roles = {json.loads((await replies.next_msg(timeout=5)).data)["metadata"]["role"] for _ in "ab"}
    assert roles == {"gateway", "worker"}
