"""F8 and F9 through the whole system: garbage at every door, and messages at the size limit."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import time
from collections import Counter

import msgpack
import nats as nats_py
import numpy as np
import pytest

from hedgerow_shared import subjects
from hedgerow_shared.bus import Bus, BusOptions
from hedgerow_shared.errors import TooLargeError
from hedgerow_shared.ragged import RaggedBatch
from hedgerow_shared.wire import Chunk, ChunkReply, decode_reply, encode_chunk
from tests.faults.rig import Load
from tests.scheduler.worker_process import WorkerProcess

pytestmark = pytest.mark.system

CASES = 5000
QUICK = ("--fake-ms", "1", "--fake-floor-ms", "0")


def rss_bytes(process) -> int:
    class Only:
        pass

    only = Only()
    only.process = process
    return WorkerProcess.rss_bytes.fget(only)


def damaged(good: bytes, rng: random.Random) -> bytes:
    """One of the ways a message can be wrong."""
    kind = rng.randrange(5)
    if kind == 0:
        return rng.randbytes(rng.randrange(200))
    if kind == 1:
        return good[: rng.randrange(len(good))]
    data = bytearray(good)
    for _ in range(rng.randrange(1, 6)):
        data[rng.randrange(len(data))] = rng.randrange(256)
    return bytes(data)


def crafted() -> list[bytes]:
    """Chunks that read well and contradict themselves."""
    body = msgpack.unpackb(encode_chunk(Chunk("c", "toy", 0, 5000.0, RaggedBatch.of([[5, 6]]))))
    ids = lambda *values: np.array(values, "<i4").tobytes()  # noqa: E731
    wrong = [
        {"cu": ids(0, 5)},
        {"cu": ids(0, 2, 1)},
        {"cu": ids(1, 2)},
        {"cu": ids(0, 1, 1, 2)},
        {"cu": b"\x00" * 5},
        {"ids": ids(2**31 - 1, 0)},
        {"ids": ids(-1, 0)},
        {"ids": b""},
        {"ids": [5, 6]},
        {"ttl_ms": float("nan")},
        {"ttl_ms": -1},
        {"ttl_ms": 0},
        {"lane": 9},
        {"v": 2},
        {"model": "toy\x00"},
        {"model": "x" * 5000},
        {"id": "y" * 5000},
        {"pair": ids(7)},
        {"prompt": ids(-3)},
        {"spans": ids(0, 1)},
        {"out": {"task": "embed", "dtypes": [], "dims": [], "norm": None}},
        {"out": {"task": "embed", "dtypes": ["float64"], "dims": [], "norm": None}},
        {"out": {"task": "embed", "dtypes": ["float32"], "dims": [2**40], "norm": None}},
    ]
    # A string and an array that claim two gigabytes.
    claims = [b"\xdb\x7f\xff\xff\xff" + b"x", b"\xdd\x7f\xff\xff\xff", b"\xdf\x7f\xff\xff\xff"]
    return [msgpack.packb(body | change) for change in wrong] + claims


async def test_f8_ten_thousand_wrong_messages_get_an_error_each_and_hurt_nobody(rig):
    system = rig(workers=(QUICK,))
    bus = await Bus.connect(BusOptions(system.nats.url))
    rng = random.Random(8)
    processes = [system.workers[0], system.gateways[0]]
    chunk = encode_chunk(Chunk("c", "toy", 0, 5000.0, RaggedBatch.of([[5, 6, 7], [8, 9]])))
    request = b'{"input": ["one", "two"], "encoding_format": "base64"}'
    await flood(bus, system, chunk, request, rng, 500)
    before = [rss_bytes(p) for p in processes]
    async with Load(system.embed_url, callers=2) as neighbours:
        codes = await flood(bus, system, chunk, request, rng, CASES)
    assert set(neighbours.statuses) == {200}, neighbours.errors()
    grown = [rss_bytes(p) - b for p, b in zip(processes, before, strict=True)]
    assert max(grown) < 48 << 20, grown
    assert system.alive()
    assert sum(codes.values()) == 2 * CASES + len(crafted())
    assert codes["silence"] == 0, codes
    assert codes["400"] + codes["invalid_chunk"] > CASES, codes
    assert codes["500"] == codes["internal_error"] == 0, codes
    await bus.close(patience_s=0)


async def flood(bus, system, chunk: bytes, request: bytes, rng, cases: int) -> dict[str, int]:
    """How each wrong message was answered."""
    codes: dict[str, int] = dict.fromkeys(
        ("silence", "400", "invalid_chunk", "500", "internal_error"), 0
    )

    async def internal(data: bytes) -> str:
        reply = decode_reply((await bus.request(subjects.chunk("toy"), data, timeout_s=20)).data)
        return reply.error.code if reply.error else "ok"

    async def public(data: bytes) -> str:
        reply = await bus.request(subjects.embed("toy"), data, timeout_s=20)
        return reply.headers.get(subjects.HEADER_ERROR_CODE, "ok")

    asked = [(internal, data) for data in crafted()] if cases == CASES else []
    asked += [(internal, damaged(chunk, rng)) for _ in range(cases)]
    asked += [(public, damaged(request, rng)) for _ in range(cases)]
    for start in range(0, len(asked), 200):
        part = asked[start : start + 200]
        answers = await asyncio.gather(*(ask(d) for ask, d in part), return_exceptions=True)
        for (_, data), answer in zip(part, answers, strict=True):
            code = "silence" if isinstance(answer, BaseException) else answer
            codes[code] = codes.get(code, 0) + 1
            if code == "silence":
                print(f"{data!r}: {answer!r}")
    return codes


async def test_f8_each_chunk_that_contradicts_itself_is_refused_and_its_neighbour_is_not(rig):
    system = rig(workers=(QUICK,))
    bus = await Bus.connect(BusOptions(system.nats.url))
    good = encode_chunk(Chunk("good", "toy", 0, 5000.0, RaggedBatch.of([[5, 6, 7]])))

    async def reply(data: bytes) -> ChunkReply:
        message = await bus.request(subjects.chunk("toy"), data, timeout_s=20)
        return decode_reply(message.data)

    right, codes = (await reply(good)).rows[0][0], Counter[str]()
    for data in crafted():
        refused, neighbour = await asyncio.gather(reply(data), reply(good))
        assert np.array_equal(neighbour.rows[0][0], right)
        codes[refused.error.code if refused.error else "ok"] += 1
    # The fake device has no table that an id could be outside of; the real one's test is with it.
    assert codes == {"invalid_chunk": 22, "ok": 2, "model_not_found": 1, "deadline_exceeded": 1}
    await bus.close(patience_s=0)


async def test_f8_a_connection_that_speaks_nonsense_over_http_is_closed_and_forgotten(rig):
    system = rig(workers=(QUICK,))
    rng = random.Random(3)
    for nonsense in (
        rng.randbytes(2000),
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /v1/embeddings HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
        b"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n",
        b"POST /v1/embeddings HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nZZZ\r\n",
        b"POST /v1/embeddings HTTP/1.1\r\nX: " + b"a" * 100_000 + b"\r\n\r\n",
    ):
        with socket.create_connection(("127.0.0.1", system.port), 10) as connection:
            connection.sendall(nonsense)
            answer = await asyncio.to_thread(connection.recv, 4096)
            assert answer.startswith((b"HTTP/1.1 4", b"HTTP/1.0 4")), nonsense[:60]
    async with Load(system.embed_url, callers=1) as load:
        await asyncio.sleep(0.3)
    assert set(load.statuses) == {200}


@pytest.mark.parametrize("headers", [None, {"traceparent": "00-" + "a" * 32 + "-" + "b" * 16}])
async def test_f9_messages_around_the_limit_close_no_connection_of_ours(rig, headers):
    system = rig(workers=(QUICK,))
    ours = connection_ids(system)
    client = await nats_py.connect(system.nats.url, max_reconnect_attempts=0)
    limit = client.max_payload
    head = b'{"input": "'
    tail = b'"}'
    room = sum(len(k) + len(v) + 4 for k, v in (headers or {}).items()) + (12 if headers else 0)
    for size in (limit - 1 - room, limit - room):
        body = head + (b"ab " * size)[: size - len(head) - len(tail)] + tail
        reply = await client.request(subjects.embed("toy"), body, timeout=20, headers=headers)
        found = json.loads(reply.data)
        assert found["hedgerow"]["inputs"][0]["truncated"] is True
    bus = await Bus.connect(BusOptions(system.nats.url))
    for size in (bus.max_message_bytes + 1, limit - 1, limit, limit + 1):
        with pytest.raises(TooLargeError):
            await bus.request(subjects.embed("toy"), b"a" * size, timeout_s=5, headers=headers)
    assert bus.is_connected
    # An answer over the limit is refused with the way out; over HTTP it is not a message at all.
    many = json.dumps({"input": ["word"] * 8000}).encode()
    reply = await client.request(subjects.embed("toy"), many, timeout=20)
    assert reply.headers[subjects.HEADER_ERROR_CODE] == "413"
    async with Load(system.embed_url, callers=1, texts=2000, words=3) as load:
        while not load.outcomes:
            await asyncio.sleep(0.01)
    assert load.statuses[200] >= 1, load.errors()
    assert connection_ids(system) == ours
    await client.close()
    await bus.close(patience_s=0)


def connection_ids(system) -> set[int]:
    names = ("hedgerow-worker", "hedgerow-gateway")
    end_s = time.monotonic() + 5
    while time.monotonic() < end_s:
        found = {c["cid"] for c in system.connections() if c.get("name", "").startswith(names)}
        if len(found) >= 2:
            return found
    raise AssertionError("the services are not connected")
