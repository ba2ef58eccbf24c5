"""One test for each trap of nats-py that loses replies, deafens a connection or closes it.

Each of these fails when it is written with plain nats-py 2.16 (docs/decisions/0002).
"""

import asyncio
import contextlib
import time

import pytest

from hedgerow_shared.bus import Bus, BusOptions, dial
from hedgerow_shared.errors import (
    DeadlineError,
    ForbiddenError,
    RetryableError,
    TooLargeError,
    WorkerLostError,
)
from tests.relay import Relay
from tests.waiting import until

pytestmark = pytest.mark.system


async def test_barrier_comes_after_what_was_published_before_it(nats_server, connect):
    """Trap 1: flush() writes PING ahead of queued messages."""
    async with Relay(nats_server.port) as relay:
        bus = await connect(relay.url)
        start = len(relay.seen)
        await bus.subscribe("trap.one", lambda _: None)
        bus.publish_nowait("trap.one.out", b"x" * 100)
        await bus.barrier()
        sent = bytes(relay.seen[start:])
        assert sent.index(b"SUB trap.one") < sent.index(b"PUB trap.one.out") < sent.index(b"PING")


async def test_a_subscription_is_live_once_barrier_returns(nats_server, connect):
    """Trap 1, its consequence: "ready" was said before the server knew of us."""
    worker, caller = await connect(nats_server.url), await connect(nats_server.url)
    for i in range(50):
        subject = f"trap.ready.{i}"
        await worker.subscribe(subject, lambda m: worker.publish_nowait(m.reply, b"here"))
        await worker.barrier()
        assert (await caller.request(subject, b"", timeout_s=5)).data == b"here"


async def test_a_pong_that_comes_after_its_flush_gave_up_does_no_harm(nats_server, connect):
    """Trap 2: set_result on the cancelled future ended the reader; is_connected stayed true."""
    async with Relay(nats_server.port) as relay:
        bus = await connect(relay.url)
        reader = bus.client._reading_task
        relay.hold(to_client=True)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(bus.barrier(), 0.2)
        relay.release()
        await bus.barrier()
        assert bus.client._reading_task is reader
        assert not reader.done()
        assert relay.connections == 1


async def test_a_reader_that_died_is_noticed_and_the_connection_renewed(nats_server, connect, echo):
    """Trap 2, whatever its cause: deaf until the pings fail, minutes with the defaults."""
    await echo(nats_server.url, "trap.deaf")
    bus = await connect(nats_server.url)
    bus.client._reading_task.cancel()
    await asyncio.sleep(0.05)
    assert bus.client.is_deaf
    assert not bus.is_connected
    end_s = time.monotonic() + 3
    while True:
        try:
            assert (await bus.request("trap.deaf", b"hello", timeout_s=0.5)).data == b"hello"
            break
        except (WorkerLostError, DeadlineError):
            assert time.monotonic() < end_s, "still deaf after three seconds"
            await asyncio.sleep(0.05)


async def test_an_error_report_that_fails_does_not_end_the_reader(
    start_nats, connect, echo, monkeypatch
):
    """Trap 3: error_cb is awaited inside the reader."""
    server = start_nats(extra=_USERS)
    await echo(server.url, "open.echo", user="worker", password="w")
    bus = await connect(server.url, user="caller", password="c")

    def broken(_error: Exception) -> None:
        raise RuntimeError("a bug in logging")

    monkeypatch.setattr(bus._link, "_note", broken)
    bus.publish_nowait("closed.subject", b"")
    await bus.barrier()
    assert (await bus.request("open.echo", b"alive", timeout_s=2)).data == b"alive"


async def test_close_waits_for_replies_on_the_way(nats_server, connect):
    """Trap 4: drain() ends the reply subscription first, and requests in flight time out."""
    worker, caller = await connect(nats_server.url), await connect(nats_server.url)
    loop = asyncio.get_running_loop()
    await worker.subscribe(
        "trap.slow", lambda m: loop.call_later(0.3, worker.publish_nowait, m.reply, b"late")
    )
    await worker.barrier()
    requests = [
        asyncio.create_task(caller.request("trap.slow", b"", timeout_s=5)) for _ in range(16)
    ]
    await asyncio.sleep(0.05)
    await caller.close(patience_s=3)
    assert [(await r).data for r in requests] == [b"late"] * 16


async def test_what_was_published_before_close_arrives(nats_server, connect):
    """Trap 4, the worker's side: replies still queued when the process drains."""
    listener, worker = await connect(nats_server.url), await connect(nats_server.url)
    got: list[int] = []
    subscription = await listener.subscribe("trap.last", lambda m: got.append(int(m.data)))
    await listener.barrier()
    for i in range(2000):
        worker.publish_nowait("trap.last", str(i).encode())
    await worker.close()
    await subscription.drain()
    assert got == list(range(2000))


async def test_close_while_disconnected_forgets_what_was_not_sent(start_nats):
    """close() writes it to the socket that is gone, and raises what that raises."""
    server = start_nats()
    bus = await Bus.connect(BusOptions(server.url))
    server.kill()
    await until(lambda: not bus.is_connected)
    bus.publish_nowait("x", b"kept for a server that does not come back")
    await bus.close()
    with pytest.raises(RetryableError):
        bus.publish_nowait("x", b"")


async def test_close_ends_a_reconnect_that_missed_that_it_was_cancelled(start_nats, monkeypatch):
    """close() cancels once, and wait_for swallows that when the try has just failed: it went on."""
    server = start_nats()
    bus = await Bus.connect(BusOptions(server.url))
    tries: list[object] = []

    async def refused(server: object) -> None:
        tries.append(server)
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(30)
        if len(tries) == 1:
            raise ConnectionRefusedError
        raise asyncio.CancelledError

    monkeypatch.setattr(bus.client, "_connect_to_server", refused)
    server.kill()
    await until(lambda: len(tries) == 1)
    await bus.close()
    with pytest.raises(RetryableError):
        bus.publish_nowait("x", b"")
    assert [t for t in asyncio.all_tasks() if "_attempt_reconnect" in repr(t.get_coro())] == []


@pytest.mark.parametrize("over", [-1, 0, 1], ids=["one below", "at the cap", "one above"])
@pytest.mark.parametrize("headers", [None, {"k": "v" * 5000}], ids=["bare", "with headers"])
async def test_no_message_goes_over_the_cap_and_none_closes_the_connection(
    nats_server, connect, echo, over, headers
):
    """Trap 5: nats-py does not count headers; the server does, and ends the connection."""
    await echo(nats_server.url, "trap.size")
    closed: list[bool] = []
    bus = await connect(nats_server.url, on_closed=lambda: closed.append(True))
    assert bus.max_payload == 1024 * 1024
    assert bus.max_message_bytes == bus.max_payload - 8192
    block = len(b"NATS/1.0\r\nk: \r\n\r\n") + 5000 if headers else 0
    body = b"x" * (bus.max_message_bytes - block + over)
    if over > 0:
        with pytest.raises(TooLargeError) as refused:
            await bus.request("trap.size", body, timeout_s=5, headers=headers)
        assert str(bus.max_message_bytes) in refused.value.message
    else:
        assert (await bus.request("trap.size", body, timeout_s=5, headers=headers)).data == body
    assert (await bus.request("trap.size", b"after", timeout_s=5)).data == b"after"
    assert closed == []


async def test_a_connection_the_server_ends_for_good_is_reported_once(nats_server, connect):
    """Trap 5, whatever its cause: closed in silence, and the process lives on without a bus."""
    closed: list[bool] = []
    bus = await connect(nats_server.url, on_closed=lambda: closed.append(True))
    await bus.subscribe("trap.silent", lambda _: None)
    waiting = asyncio.create_task(bus.request("trap.silent", b"", timeout_s=30))
    await bus.barrier()
    # Past our own cap, as a message of another version of this code might be.
    bus.client.send("trap.size.raw", "", b"", b"x" * (bus.max_payload + 1))
    with pytest.raises(WorkerLostError):
        await asyncio.wait_for(waiting, 5)
    await until(lambda: closed)
    await asyncio.sleep(0.1)
    assert closed == [True]


async def test_a_reply_carries_no_header_of_the_request(nats_server, connect, echo):
    """Trap 6: respond() sends the request's headers back."""
    await echo(nats_server.url, "trap.headers")
    bus = await connect(nats_server.url)
    reply = await bus.request(
        "trap.headers", b"x", timeout_s=5, headers={"Authorization": "Bearer secret"}
    )
    assert dict(reply.headers) == {}
    assert not hasattr(reply, "respond")


async def test_a_refused_publish_ends_its_request_at_once(start_nats, connect):
    """A denied request looks like a timeout to nats-py."""
    server = start_nats(extra=_USERS)
    bus = await connect(server.url, user="caller", password="c")
    start_s = time.monotonic()
    with pytest.raises(ForbiddenError, match=r"may not publish to closed\.subject"):
        await bus.request("Closed.Subject", b"", timeout_s=10)
    assert time.monotonic() - start_s < 1
    assert ForbiddenError.status == 403


async def test_unsent_bytes_do_not_hold_up_a_reconnect(nats_server, connect, echo):
    """Issue 671: it waits in wait_closed() until the kernel gives the old connection up."""
    await echo(nats_server.url, "trap.partition")
    async with Relay(nats_server.port) as relay:
        bus = await connect(relay.url)
        relay.hold(to_server=True, to_client=True)
        for _ in range(40):
            bus.publish_nowait("trap.void", b"x" * 500_000)
        await asyncio.sleep(0.1)
        start_s = time.monotonic()
        await bus.client.force_reconnect()
        await asyncio.sleep(1.2)
        relay.release()
        while True:
            try:
                await bus.request("trap.partition", b"", timeout_s=1)
                break
            except (WorkerLostError, DeadlineError):
                assert time.monotonic() - start_s < 5, "held up by the dead connection"
                await asyncio.sleep(0.05)


async def test_a_silent_server_is_noticed_by_pings(nats_server, connect, monkeypatch):
    """Defaults would notice a half-open link after six minutes."""
    assert dial._BEHAVIOUR["ping_interval"] * 3 <= 15
    monkeypatch.setitem(dial._BEHAVIOUR, "ping_interval", 0.1)
    async with Relay(nats_server.port) as relay:
        bus = await connect(relay.url)
        relay.hold(to_client=True)
        with pytest.raises(WorkerLostError):
            await bus.request("trap.silent", b"", timeout_s=10)
        relay.release()


_USERS = """
authorization {
  users: [
    { user: worker, password: w }
    { user: caller, password: c, permissions: {
        publish: { allow: ["open.>"] }, subscribe: { allow: ["_INBOX.>", "open.>"] } } }
  ]
}
"""
