"""The NATS side with real processes, through our own bus."""

from __future__ import annotations

import asyncio
import json

import msgpack
import numpy as np
import pytest

from hedgerow_gateway.tokenizer import open_tokenizer
from hedgerow_scheduler.fake_engine import fake_vector
from hedgerow_shared.bus import Bus, BusOptions
from hedgerow_shared.errors import NoWorkerError
from hedgerow_shared.modelcard import read_card
from tests.gateway.bad_input import CASES, raw, read

pytestmark = pytest.mark.system

SUBJECTS = {name: f"hedgerow.v1.{name}.toy" for name in ("embed", "rerank", "tokenize")}


@pytest.fixture
async def bus(stack):
    found = await Bus.connect(BusOptions(url=stack.nats.url))
    yield found
    await found.close()


@pytest.fixture(scope="module")
def tokenizer(toy_folders):
    return open_tokenizer(read_card(toy_folders["wordpiece"]), log=print)


def expected(tokenizer, text):
    return fake_vector(tokenizer.encode([text], limit=64).input_ids, 8)


async def ask(bus, subject, body, headers=None):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return await bus.request(subject, data, timeout_s=30, headers=headers)


def code(message):
    return message.headers.get("Nats-Service-Error-Code")


@pytest.mark.parametrize("case", CASES, ids=str)
async def test_a_wrong_request_is_answered_with_headers_and_the_same_body_as_http(bus, case):
    route, body, status, name, paths = CASES[case]
    message = await ask(bus, SUBJECTS[route], raw(body))
    assert code(message) == str(status)
    assert message.headers["Nats-Service-Error"]
    error = read(message.data)
    assert error["error"]["code"] == name
    assert ([d["param"] for d in error["detail"]] or [error["error"]["param"]]) == paths
    assert code(await ask(bus, SUBJECTS["embed"], {"input": "still here"})) is None


async def test_json_in_json_out(bus, tokenizer):
    message = await ask(bus, SUBJECTS["embed"], {"input": ["hello there", "two"]})
    body = json.loads(message.data)
    assert not message.headers
    for i, text in enumerate(["hello there", "two"]):
        found = np.array(body["data"][i]["embedding"], np.float32)
        assert np.array_equal(found, expected(tokenizer, text))


async def test_msgpack_in_msgpack_out(bus, tokenizer):
    packed = msgpack.packb({"input": ["hello there", "two"], "dimensions": 8})
    body = msgpack.unpackb((await ask(bus, SUBJECTS["embed"], packed)).data)
    assert (body["model"], body["dtype"], body["shape"]) == ("toy", "float32", [2, 8])
    vectors = np.frombuffer(body["data"], "<f4").reshape(2, 8)
    assert np.array_equal(vectors[1], expected(tokenizer, "two"))


async def test_rerank_and_tokenize_in_both_forms(bus):
    asked = {"query": "capital", "documents": ["Paris", "bananas"], "top_n": 1}
    as_json = json.loads((await ask(bus, SUBJECTS["rerank"], asked)).data)
    as_msgpack = msgpack.unpackb((await ask(bus, SUBJECTS["rerank"], msgpack.packb(asked))).data)
    assert as_json["results"] == as_msgpack["results"]
    assert len(as_json["results"]) == 1
    ids = json.loads((await ask(bus, SUBJECTS["tokenize"], {"input": "hello"})).data)
    assert ids["token_ids"][0]


async def test_models_need_no_body(bus):
    for body in (b"", b"{}"):
        listed = json.loads((await ask(bus, "hedgerow.v1.models", body)).data)
        assert [m["id"] for m in listed["data"]] == ["toy"]


async def test_a_model_nobody_serves_has_no_listener(bus):
    with pytest.raises(NoWorkerError):
        await ask(bus, "hedgerow.v1.embed.other", {"input": "a"})


async def test_the_answer_of_a_large_request_is_refused_with_the_way_out(bus):
    message = await ask(bus, SUBJECTS["embed"], {"input": ["some text"] * 8192})
    assert code(message) == "413"
    assert "HTTP" in json.loads(message.data)["error"]["message"]


@pytest.mark.parametrize("ttl", ["0", "-3", "soon"])
async def test_a_time_that_is_none_is_refused(bus, ttl):
    message = await ask(bus, SUBJECTS["embed"], {"input": "a"}, {"Hedgerow-Ttl-Ms": ttl})
    assert code(message) == "400"
    assert json.loads(message.data)["error"]["param"] == "Hedgerow-Ttl-Ms"


async def test_no_header_of_the_request_comes_back(bus):
    message = await ask(bus, SUBJECTS["embed"], {"input": "a"}, {"Authorization": "secret"})
    assert "Authorization" not in message.headers
    refused = await ask(bus, SUBJECTS["embed"], {}, {"Authorization": "secret"})
    assert "Authorization" not in refused.headers


async def test_a_message_without_reply_subject_costs_nothing(bus):
    await bus.publish(SUBJECTS["embed"], b'{"input": "to nobody"}')
    assert code(await ask(bus, SUBJECTS["embed"], {"input": "a"})) is None


async def test_a_reply_subject_outside_every_inbox_is_never_published_to(bus):
    heard = []
    await bus.subscribe("hedgerow.worker.x.cancel", heard.append)
    await bus.subscribe("_INBOX.mine", heard.append)
    await bus.barrier()
    body = b'{"input": "a"}'
    await bus.publish(SUBJECTS["embed"], body, reply="hedgerow.worker.x.cancel")
    await bus.publish(SUBJECTS["embed"], body, reply="_INBOX.mine")
    for _ in range(100):
        await asyncio.sleep(0.02)
        if heard:
            break
    await asyncio.sleep(0.2)
    assert [message.subject for message in heard] == ["_INBOX.mine"]


async def test_a_lone_surrogate_in_a_key_is_answered_too(bus):
    reply = await bus.request(SUBJECTS["embed"], b'{"\\ud800": "\\udc01"}', timeout_s=10)
    assert reply.headers["Nats-Service-Error-Code"] == "400"
    assert "\\ud800" in json.loads(reply.data)["error"]["param"]


async def test_many_requests_at_once_each_get_their_own_answer(bus, tokenizer):
    texts = [f"text number {i}" for i in range(300)]
    found = await asyncio.gather(*(ask(bus, SUBJECTS["embed"], {"input": t}) for t in texts))
    for text, message in zip(texts, found, strict=True):
        vector = json.loads(message.data)["data"][0]["embedding"]
        assert np.array_equal(np.array(vector, np.float32), expected(tokenizer, text))


async def test_discovery_finds_the_gateway_with_its_subjects(bus):
    replies = await bus.request_many("$SRV.INFO.hedgerow", b"", timeout_s=0.5)
    infos = [json.loads(reply.data) for reply in replies]
    gateway = next(i for i in infos if i["metadata"]["role"] == "gateway")
    subjects = {e["subject"] for e in gateway["endpoints"]}
    assert {*SUBJECTS.values(), "hedgerow.v1.models"} <= subjects
    stats = await bus.request(f"$SRV.STATS.hedgerow.{gateway['id']}", b"", timeout_s=2)
    assert json.loads(stats.data)["endpoints"][0]["num_requests"] > 0
