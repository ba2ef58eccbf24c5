"""What each role must not do is refused at once, by the embedded server and by infra/nats alike."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest

from hedgerow_shared import subjects
from hedgerow_shared.bus import Bus
from hedgerow_shared.errors import ForbiddenError, StartupError

pytestmark = pytest.mark.system

CHUNK = subjects.chunk("m")
AT_ONCE_S = 2.0
"""Requests below have 20 s to live: a refusal that took this long would be a timeout."""


async def refused(bus, subject: str) -> None:
    """A request to a subject that this user may not publish on is an error, not a timeout."""
    began_s = time.monotonic()
    with pytest.raises(ForbiddenError):
        await bus.request(subject, b"{}", timeout_s=20)
    assert time.monotonic() - began_s < AT_ONCE_S


async def may_not_listen(bus, subject: str, queue: str = "") -> None:
    await bus.subscribe(subject, lambda _: None, queue=queue)
    with pytest.raises(ForbiddenError):
        await bus.barrier()


async def test_the_way_from_a_caller_to_a_worker_and_back_is_open(join):
    public, gateway, worker = await join("public"), await join("gateway"), await join("worker")

    def compute(message) -> None:
        worker.publish_nowait(message.reply, b"vectors of " + message.data)

    async def serve(message) -> None:
        reply = await gateway.request(CHUNK, message.data, timeout_s=5)
        gateway.publish_nowait(message.reply, reply.data)

    tasks = []
    await worker.subscribe(CHUNK, compute, queue=subjects.QUEUE_WORKERS)
    await gateway.subscribe(
        subjects.embed("m"),
        lambda message: tasks.append(asyncio.ensure_future(serve(message))),
        queue=subjects.QUEUE_GATEWAYS,
    )
    await worker.barrier()
    await gateway.barrier()
    for i in range(20):
        reply = await public.request(subjects.embed("m"), b"%d" % i, timeout_s=5)
        assert reply.data == b"vectors of %d" % i


async def test_a_client_may_name_one_inbox_for_all_it_asks(join):
    public, gateway = await join("public"), await join("gateway")
    asked, answered = [], []
    await gateway.subscribe(subjects.embed("m"), asked.append, queue=subjects.QUEUE_GATEWAYS)
    await gateway.barrier()
    inbox = public.new_inbox()
    await public.subscribe(inbox, answered.append)
    for i in range(10):
        public.publish_nowait(subjects.embed("m"), b"%d" % i, reply=inbox)
    await public.barrier()
    while len(asked) < 10:
        await asyncio.sleep(0.01)
    for message in asked:
        gateway.publish_nowait(message.reply, b"answer " + message.data)
    await gateway.barrier()
    while len(answered) < 10:
        await asyncio.sleep(0.01)
    assert {m.data for m in answered} == {b"answer %d" % i for i in range(10)}


async def test_a_worker_answers_once_and_not_twice(join):
    gateway, worker = await join("gateway"), await join("worker")

    def twice(message) -> None:
        worker.publish_nowait(message.reply, b"first")
        worker.publish_nowait(message.reply, b"second")

    await worker.subscribe(CHUNK, twice, queue=subjects.QUEUE_WORKERS)
    await worker.barrier()
    replies = await gateway.request_many(CHUNK, b"", timeout_s=0.5)
    assert [reply.data for reply in replies] == [b"first"]


@pytest.mark.parametrize("role", ["public", "worker"])
async def test_nobody_reads_the_answers_meant_for_gateways(join, role):
    bus = await join(role)
    await may_not_listen(bus, "_INBOX_gateway.>")
    await may_not_listen(bus, ">")


@pytest.mark.parametrize("role", ["public", "gateway", "worker"])
async def test_nobody_writes_into_an_inbox_unasked(join, role):
    victim, heard = await join("gateway"), []
    inbox = victim.new_inbox()
    await victim.subscribe(inbox, heard.append)
    await victim.barrier()
    await refused(await join(role), inbox)
    await victim.barrier()
    assert heard == []


async def test_a_client_cannot_take_chunks_as_a_worker_does(join):
    public = await join("public")
    await may_not_listen(public, CHUNK, subjects.QUEUE_WORKERS)
    await may_not_listen(public, subjects.worker_chunk("w1", "m"))


@pytest.mark.parametrize("role", ["public", "worker"])
async def test_texts_are_read_by_gateways_only(join, role):
    await may_not_listen(await join(role), "hedgerow.v1.>")
    await may_not_listen(await join(role), subjects.embed("m"), subjects.QUEUE_GATEWAYS)


async def test_a_gateway_reads_no_caller_s_inbox_and_buries_nothing(join):
    gateway = await join("gateway")
    await may_not_listen(gateway, "_INBOX_public.>")
    await may_not_listen(gateway, "_INBOX.>")
    await refused(gateway, subjects.dead("m", "job", "1"))


async def test_a_worker_cannot_listen_beside_its_queue_group(join):
    worker = await join("worker")
    await may_not_listen(worker, CHUNK)
    await may_not_listen(worker, subjects.embed("m"), subjects.QUEUE_GATEWAYS)


@pytest.mark.parametrize(
    "subject",
    [
        CHUNK,
        subjects.worker_chunk("w1", "m"),
        subjects.worker_drain("w1"),
        subjects.FLEET,
        subjects.canary("m"),
        subjects.bulk("m", "job"),
        subjects.result("job", "1"),
        "$KV.HEDGEROW_JOBS.state.job",
        "$JS.API.INFO",
        "$JS.API.STREAM.LIST",
        "$JS.API.STREAM.MSG.GET.HEDGEROW_RESULT",
        "$JS.API.CONSUMER.MSG.NEXT.HEDGEROW_BULK.m",
        "$JS.ACK.HEDGEROW_BULK.m.1.1.1.1.0",
        "$SYS.REQ.SERVER.PING",
    ],
)
async def test_a_client_publishes_on_no_internal_subject(join, subject):
    await refused(await join("public"), subject)


@pytest.mark.parametrize("role", ["public", "worker", "gateway"])
async def test_nobody_deletes_a_stream(join, role):
    for stream in (subjects.STREAM_BULK, subjects.STREAM_RESULT, f"KV_{subjects.KV_JOBS}"):
        await refused(await join(role), f"$JS.API.STREAM.DELETE.{stream}")


async def test_a_worker_asks_for_no_work_of_others_and_makes_no_streams(join):
    worker = await join("worker")
    for subject in (
        CHUNK,
        subjects.embed("m"),
        "$JS.API.STREAM.CREATE.HEDGEROW_BULK",
        "$JS.API.STREAM.PURGE.HEDGEROW_BULK",
        "$KV.HEDGEROW_JOBS.state.job",
    ):
        await refused(worker, subject)


async def test_in_production_nobody_comes_in_without_a_name(guarded):
    if not guarded.options("public").user:
        pytest.skip("the embedded server takes everybody on this machine as the public role")
    nobody = replace(guarded.options("public"), user="", password="")
    with pytest.raises(StartupError, match="does not let a client without a user in"):
        await Bus.connect(nobody)


async def test_a_client_that_gives_the_wrong_password_is_told_so(guarded):
    wrong = replace(guarded.options("worker"), password="not this one")
    with pytest.raises(StartupError, match="does not let user 'worker' in"):
        await Bus.connect(wrong)
