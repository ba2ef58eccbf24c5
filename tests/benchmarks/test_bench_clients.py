"""The clients of the benchmarks read what servers send, whole and in pieces."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from benchmarks.clients import aio
from benchmarks.clients.bus import RawNats
from benchmarks.clients.http import ResponseReader, get, post
from benchmarks.target import RefusedError, good, vectors
from tests.benchmarks.conftest import StubServer, vector_of
from tests.nats_fixture import NatsHandle

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-A: b\r\n\r\nhello"
CHUNKED = (
    b"HTTP/1.1 503 No\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2;x=y\r\nlo\r\n0\r\n\r\n"
)


@pytest.mark.parametrize(("stream", "status"), [(ANSWER, 200), (CHUNKED, 503)])
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_an_answer_is_read_whole_however_it_is_cut(stream: bytes, status: int, size: int) -> None:
    reader = ResponseReader()
    for _ in range(2):
        found = [reader.feed(stream[i : i + size]) for i in range(0, len(stream), size)]
        assert found[:-1] == [None] * (len(found) - 1)
        assert found[-1] is not None
        assert (found[-1].status, found[-1].body) == (status, b"hello")


def test_a_request_says_its_length_and_its_own_headers() -> None:
    head, _, body = post("h:1", "/v1/x", b"{}", hedgerow_ttl_ms="7").partition(b"\r\n\r\n")
    assert body == b"{}"
    assert head.startswith(b"POST /v1/x HTTP/1.1\r\nhost: h:1\r\n")
    assert b"\r\ncontent-length: 2\r\n" in head
    assert head.endswith(b"\r\nhedgerow-ttl-ms: 7")


@pytest.mark.parametrize("chunked", [False, True])
def test_vectors_come_back_in_the_order_of_their_index(stub: StubServer, chunked: bool) -> None:
    stub.chunked = chunked
    ids = [np.array([101, 7, 102], np.int32), np.array([101, 8, 102], np.int32)]
    got = stub.target.embed("minilm", ids)
    assert np.array_equal(got, np.stack([vector_of([101, 7, 102]), vector_of([101, 8, 102])]))
    assert stub.seen[0][1]["encoding_format"] == "base64"


def test_a_refusal_holds_status_and_header(stub: StubServer) -> None:
    stub.refusals = 1
    with stub.target.client() as client:
        response = client.exchange(stub.target.request("minilm", ["a"]))
        with pytest.raises(RefusedError, match="HTTP 429"):
            good(response)
        assert response.header("Retry-After-Ms") == "5"
        assert len(vectors(good(client.exchange(stub.target.request("minilm", ["a"]))))) == 1


def test_a_cut_connection_is_opened_again_at_the_next_exchange(stub: StubServer) -> None:
    client = stub.target.client()
    assert client.exchange(get("x", "/v1/models")).status == 200
    client.close()
    assert client.exchange(get("x", "/v1/models")).status == 200
    client.close()


def test_many_requests_at_once_each_get_their_own_answer(stub: StubServer) -> None:
    async def ask() -> list[np.ndarray]:
        pool = aio.HttpPool(stub.target.host, stub.target.port)
        requests = [stub.target.request("minilm", [f"text {i}"]) for i in range(24)]
        responses = await asyncio.gather(*(pool.exchange(r) for r in requests))
        pool.close()
        return [vectors(good(r))[0] for r in responses]

    for i, vector in enumerate(aio.run(ask())):
        assert np.array_equal(vector, vector_of(f"text {i}"))


@pytest.mark.system
async def test_the_bare_nats_client_gets_replies_with_and_without_headers(
    nats_server: NatsHandle,
) -> None:
    import nats

    service = await nats.connect(nats_server.url)

    async def answer(msg: object) -> None:
        headers = {"Nats-Service-Error-Code": "400"} if msg.data == b"bad" else None
        await service.publish(msg.reply, b"<" + msg.data + b">", headers=headers)

    await service.subscribe("bench.echo", cb=answer)
    await service.flush()
    client = await asyncio.to_thread(RawNats, nats_server.url)
    plain = await asyncio.to_thread(client.request, "bench.echo", b"x" * 100_000)
    assert (plain.data, plain.error) == (b"<" + b"x" * 100_000 + b">", "")
    refused = await asyncio.to_thread(client.request, "bench.echo", b"bad")
    assert refused.data == b"<bad>"
    assert "400" in refused.error
    absent = await asyncio.to_thread(client.request, "bench.nobody", b"")
    assert "503" in absent.error
    client.close()
    await service.close()
