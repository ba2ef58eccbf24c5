"""The JetStream part of the bus, on a real server."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable

import pytest

from hedgerow_shared.bus import Bus, BusOptions
from hedgerow_shared.bus.jetstream import (
    JetStream,
    JetStreamError,
    NoStreamError,
    SequenceConflictError,
)
from hedgerow_shared.bus.jetstream_kv import Bucket, stream_of
from hedgerow_shared.bus.jetstream_pull import Delivery, Pull, parse
from hedgerow_shared.bus.message import Message
from hedgerow_shared.errors import StorageError
from tests.nats_fixture import NatsHandle
from tests.waiting import until


@pytest.fixture
async def bus(nats_server: NatsHandle) -> AsyncIterator[Bus]:
    bus = await Bus.connect(BusOptions(url=nats_server.url))
    yield bus
    await bus.close(patience_s=0.1)


@pytest.fixture
async def js(bus: Bus) -> AsyncIterator[JetStream]:
    yield JetStream(bus)


@pytest.fixture
async def stream(js: JetStream) -> AsyncIterator[str]:
    """A small file stream of its own: NAME with the subjects NAME.>"""
    name = f"T{uuid.uuid4().hex[:8]}"
    config = {"name": name, "subjects": [f"{name}.>"], "storage": "file", "discard": "new"}
    await js.call(f"STREAM.CREATE.{name}", {**config, "max_bytes": 100_000, "allow_direct": True})
    yield name
    await js.call(f"STREAM.DELETE.{name}")


async def consumer(js: JetStream, stream: str, **config: object) -> str:
    body = {"name": "c", "durable_name": "c", "ack_policy": "explicit", **config}
    call = f"CONSUMER.CREATE.{stream}.c"
    await js.call(call, {"stream_name": stream, "action": "create", "config": body})
    return "c"


async def test_a_message_sent_twice_is_stored_once_and_the_sender_is_told(js, stream):
    first = await js.publish(f"{stream}.a", b"1", msg_id="x")
    second = await js.publish(f"{stream}.a", b"2", msg_id="x")
    assert (first.seq, first.duplicate, second.seq, second.duplicate) == (1, False, 1, True)


async def test_the_second_message_of_a_subject_that_may_have_one_is_refused(js, stream):
    await js.publish(f"{stream}.a", b"1", expect_last=0)
    with pytest.raises(SequenceConflictError):
        await js.publish(f"{stream}.a", b"2", expect_last=0)
    found = await js.last(stream, f"{stream}.a")
    assert found is not None and found.data == b"1"


async def test_a_full_stream_is_a_storage_error_and_keeps_what_it_had(js, stream):
    stored = 0
    with pytest.raises(StorageError, match="maximum bytes"):
        while True:
            await js.publish(f"{stream}.a", b"x" * 1000)
            stored += 1
    info = await js.stream_info(stream)
    assert stored > 50 and info is not None and info["state"]["messages"] == stored


async def test_no_stream_and_no_jetstream_are_told_apart_from_refusals(
    js, start_nats: Callable[..., NatsHandle]
):
    with pytest.raises(StorageError, match="stream is gone"):
        await js.publish("nobody.listens.here", b"x")
    assert await js.stream_info("NOT_THERE") is None
    with pytest.raises(NoStreamError):
        await js.last("NOT_THERE", "x")
    with pytest.raises(JetStreamError):
        await js.call("STREAM.CREATE.BAD", {"name": "BAD", "subjects": ["a b"]})
    bare = await Bus.connect(BusOptions(url=start_nats(jetstream=False).url))
    with pytest.raises(StorageError, match="without JetStream"):
        await JetStream(bare).stream_info("X")
    await bare.close()


async def test_a_server_that_does_not_answer_costs_the_timeout_and_no_more(
    start_nats: Callable[..., NatsHandle],
):
    server = start_nats()
    bus = await Bus.connect(BusOptions(url=server.url))
    server.pause()
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    with pytest.raises(StorageError, match="did not confirm"):
        await JetStream(bus, timeout_s=0.5).stream_info("X")
    assert loop.time() - began_s < 1.5
    server.resume()
    await bus.close()


async def test_pages_follow_one_another_without_gap_or_overlap(js, stream):
    for n in range(25):
        await js.publish(f"{stream}.{'even' if n % 2 == 0 else 'odd'}", str(n).encode())
    found, start, sizes = [], 1, []
    while True:
        page = await js.read(
            stream, f"{stream}.even", from_seq=start, max_messages=4, max_bytes=1 << 20
        )
        if not page.messages:
            break
        sizes.append(len(page.messages))
        found += [int(m.data) for m in page.messages]
        assert page.pending == 13 - len(found)
        start = page.messages[-1].seq + 1
    assert found == list(range(0, 25, 2))
    assert sizes == [4, 4, 4, 1]


async def test_a_page_holds_one_message_even_if_that_is_over_its_bytes(js, stream):
    await js.publish(f"{stream}.a", b"x" * 5000)
    await js.publish(f"{stream}.a", b"y" * 5000)
    page = await js.read(stream, f"{stream}.a", from_seq=1, max_messages=10, max_bytes=100)
    assert [m.data[:1] for m in page.messages] == [b"x"] and page.pending == 1


async def test_purge_deletes_one_subject_up_to_a_sequence(js, stream):
    for n in range(6):
        await js.publish(f"{stream}.{'ab'[n % 2]}", b"x")
    assert await js.purge(stream, subject=f"{stream}.a", before_seq=4) == 2
    assert await js.purge(stream, subject=f"{stream}.b") == 3
    info = await js.stream_info(stream, subjects=f"{stream}.>")
    assert info is not None and info["state"]["subjects"] == {f"{stream}.a": 1}


async def test_a_pull_takes_what_is_there_and_ends_with_the_reason(bus, js, stream):
    taken: list[Delivery] = []
    pull = Pull(bus, stream, await consumer(js, stream), taken.append)
    await pull.start()
    assert await pull.fetch(5) == "404"
    for n in range(3):
        await js.publish(f"{stream}.a", str(n).encode(), headers={"h": str(n)})
    assert await pull.fetch(2, expires_s=2.0) == ""
    assert await pull.fetch(2, expires_s=0.3) == "408"
    assert [(d.data, d.headers["h"], d.attempt) for d in taken] == [
        (b"0", "0", 1), (b"1", "1", 1), (b"2", "2", 1),
    ]  # fmt: skip
    assert [d.pending for d in taken] == [2, 1, 0]
    await pull.stop()


async def test_a_pull_from_nobody_ends_at_once(bus):
    pull = Pull(bus, "NOT_THERE", "c", lambda _: None)
    await pull.start()
    began_s = asyncio.get_running_loop().time()
    assert await pull.fetch(1, expires_s=5.0) == "503"
    assert asyncio.get_running_loop().time() - began_s < 1.0
    await pull.stop()


async def test_what_is_given_back_comes_again_and_what_is_acknowledged_does_not(bus, js, stream):
    taken: list[Delivery] = []
    pull = Pull(bus, stream, await consumer(js, stream), taken.append)
    await pull.start()
    await js.publish(f"{stream}.a", b"a")
    await js.publish(f"{stream}.b", b"b")
    await pull.fetch(2, expires_s=2.0)
    taken[0].ack()
    taken[1].nak()
    await pull.fetch(1, expires_s=2.0)
    assert [(d.data, d.attempt) for d in taken] == [(b"a", 1), (b"b", 1), (b"b", 2)]
    taken[2].nak(0.4)
    assert await pull.fetch(1) == "404"
    await pull.fetch(1, expires_s=2.0)
    assert (taken[3].data, taken[3].attempt) == (b"b", 3)
    taken[3].ack()
    await bus.barrier()
    info = await js.call(f"CONSUMER.INFO.{stream}.c")
    assert info["num_ack_pending"] == 0
    await pull.stop()


async def test_work_in_progress_is_not_given_to_another(bus, js, stream):
    taken: list[Delivery] = []
    name = await consumer(js, stream, ack_wait=600_000_000)
    pull = Pull(bus, stream, name, taken.append)
    await pull.start()
    await js.publish(f"{stream}.a", b"a")
    await pull.fetch(1, expires_s=2.0)
    for _ in range(5):
        await asyncio.sleep(0.3)
        taken[0].in_progress()
    assert await pull.fetch(1) == "404"
    await pull.fetch(1, expires_s=2.0)
    await until(lambda: len(taken) == 2)
    assert taken[1].attempt == 2
    await pull.stop()


async def test_a_value_changes_only_for_whoever_saw_the_last_one(js):
    name = f"b{uuid.uuid4().hex[:8]}"
    config = {"name": stream_of(name), "subjects": [f"$KV.{name}.>"], "max_msgs_per_subject": 1}
    await js.call(f"STREAM.CREATE.{stream_of(name)}", {**config, "allow_direct": True})
    bucket = Bucket(js, name)
    assert await bucket.get("job.a") is None and await bucket.get_direct("job.a") is None
    first = await bucket.put("job.a", b"1")
    with pytest.raises(SequenceConflictError):
        await bucket.put("job.a", b"other")
    second = await bucket.put("job.a", b"2", first)
    with pytest.raises(SequenceConflictError):
        await bucket.put("job.a", b"3", first)
    for entry in (await bucket.get("job.a"), await bucket.get_direct("job.a")):
        assert entry is not None and (entry.value, entry.revision) == (b"2", second)
    await js.call(f"STREAM.DELETE.{stream_of(name)}")


@pytest.mark.parametrize(
    ("reply", "seq"),
    [
        ("$JS.ACK.S.c.2.17.5.1795995730288750489.9", 17),
        ("$JS.ACK.hub.ACCOUNT.S.c.2.17.5.1795995730288750489.9.r4nd0m", 17),
        ("$JS.ACK.S.c.two.17.5.1.9", None),
        ("_INBOX.x.y", None),
        ("", None),
    ],
    ids=["short", "with domain and account", "no number", "no acknowledgement", "no reply"],
)
def test_the_reply_subject_says_all_about_a_delivery(reply, seq):
    delivery = parse(None, Message("hedgerow.bulk.m.j", b"x", reply))
    if seq is None:
        assert delivery is None
    else:
        assert delivery is not None
        assert (delivery.seq, delivery.attempt, delivery.pending) == (seq, 2, 9)
