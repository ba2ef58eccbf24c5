"""The server goes away under load, comes back, or was never there."""

import asyncio
import time

import pytest

from hedgerow_shared import natsserver
from hedgerow_shared.bus import Bus, BusOptions
from hedgerow_shared.errors import (
    DeadlineError,
    ForbiddenError,
    NoWorkerError,
    RetryableError,
    StartupError,
    WorkerLostError,
)
from tests.relay import Relay
from tests.waiting import until

pytestmark = pytest.mark.system


async def test_kill_9_of_the_server_fails_every_request_in_flight_at_once(start_nats, connect):
    server = start_nats()
    worker, caller = await connect(server.url), await connect(server.url)
    await worker.subscribe("hole", lambda _: None)
    await worker.barrier()
    requests = [asyncio.create_task(caller.request("hole", b"", timeout_s=30)) for _ in range(64)]
    gather = asyncio.create_task(caller.request_many("hole", b"", timeout_s=30))
    await caller.barrier()
    assert caller.in_flight == 65
    start_s = time.monotonic()
    server.kill()
    outcomes = await asyncio.gather(*requests, gather, return_exceptions=True)
    assert {type(o) for o in outcomes} == {WorkerLostError}
    assert time.monotonic() - start_s < 1
    assert caller.in_flight == 0


async def test_service_resumes_within_two_seconds_of_the_server_and_nothing_restarts(
    start_nats, connect, echo
):
    server = start_nats()
    closed: list[bool] = []
    await echo(server.url, "work", on_closed=lambda: closed.append(True))
    caller = await connect(server.url, on_closed=lambda: closed.append(True))
    stop = asyncio.Event()
    ended: dict[str, int] = {}

    async def load() -> None:
        while not stop.is_set():
            try:
                await caller.request("work", b"x" * 256, timeout_s=2)
                name = "ok"
            except RetryableError as error:
                name = type(error).__name__
                await asyncio.sleep(0.01)
            ended[name] = ended.get(name, 0) + 1

    tasks = [asyncio.create_task(load()) for _ in range(64)]
    await asyncio.sleep(0.2)
    server.kill()
    await asyncio.sleep(0.5)
    server.restart()
    open_s = time.monotonic()
    before = ended["ok"]
    await until(lambda: ended["ok"] >= before + 200, 2.0 - (time.monotonic() - open_s))
    stop.set()
    await asyncio.wait_for(asyncio.gather(*tasks), 5)
    # NoWorkerError: the caller was back before the worker had subscribed again.
    assert set(ended) <= {"ok", "WorkerLostError", "NoWorkerError"}
    assert ended["WorkerLostError"] >= 64
    assert closed == []


async def test_a_request_while_disconnected_fails_at_once(start_nats, connect):
    server = start_nats()
    bus = await connect(server.url)
    server.kill()
    await until(lambda: not bus.is_connected)
    start_s = time.monotonic()
    for call in (
        bus.request("x", b"", timeout_s=10),
        bus.request_many("x", b"", timeout_s=10),
        bus.barrier(),
    ):
        with pytest.raises(WorkerLostError):
            await call
    assert time.monotonic() - start_s < 0.5


async def test_what_is_published_while_disconnected_arrives_later_until_the_buffer_is_full(
    start_nats, connect
):
    server = start_nats()
    bus = await connect(server.url)
    got: list[bytes] = []
    await bus.subscribe("late", lambda m: got.append(m.data), max_pending_bytes=1 << 30)
    await bus.barrier()
    server.kill()
    await until(lambda: not bus.is_connected)
    kept = 0
    with pytest.raises(RetryableError, match="send buffer"):
        for _ in range(1000):
            bus.publish_nowait("late", b"x" * 500_000)
            kept += 1
    assert 100 < kept < 140
    server.restart()
    await until(lambda: len(got) >= kept)
    assert len(got) == kept


async def test_a_request_that_never_left_is_not_sent_after_its_caller_was_told(
    nats_server, connect
):
    """A worker would compute for nobody, just when the whole fleet comes back."""
    worker = await connect(nats_server.url)
    got: list[bytes] = []
    await worker.subscribe("faults.stale", lambda m: got.append(m.data))
    await worker.barrier()
    async with Relay(nats_server.port) as relay:
        bus = await connect(relay.url)
        relay.hold(to_server=True)
        for _ in range(40):
            bus.publish_nowait("faults.void", b"x" * 500_000)
        await asyncio.sleep(0.05)
        bus.publish_nowait("faults.void", b"the flusher now waits with this one")
        await asyncio.sleep(0.05)
        request = asyncio.create_task(bus.request("faults.stale", b"request", timeout_s=30))
        await asyncio.sleep(0.05)
        bus.publish_nowait("faults.stale", b"event")
        await bus.client.force_reconnect()
        with pytest.raises(WorkerLostError):
            await request
        relay.release()
        await until(lambda: got)
        await bus.barrier()
        await worker.barrier()
        assert got == [b"event"]


async def test_a_start_that_is_cancelled_stops_trying(start_nats):
    port = natsserver.free_port()
    starting = asyncio.create_task(Bus.connect(BusOptions(f"nats://127.0.0.1:{port}")))
    await asyncio.sleep(0.2)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    await asyncio.sleep(0.05)
    assert [t for t in asyncio.all_tasks() if "connect" in repr(t.get_coro())] == []


async def test_close_while_disconnected_returns_soon(start_nats):
    server = start_nats()
    bus = await Bus.connect(BusOptions(server.url))
    server.kill()
    await until(lambda: not bus.is_connected)
    start_s = time.monotonic()
    await bus.close()
    assert time.monotonic() - start_s < 3
    with pytest.raises(RetryableError):
        bus.publish_nowait("x", b"")


async def test_a_graceful_stop_of_the_server_is_survived_too(start_nats, connect, echo):
    server = start_nats()
    await echo(server.url, "work")
    caller = await connect(server.url)
    server.stop()
    server.restart()
    end_s = time.monotonic() + 5
    while True:
        try:
            await caller.request("work", b"", timeout_s=1)
            break
        except RetryableError:
            assert time.monotonic() < end_s
            await asyncio.sleep(0.02)


async def test_nobody_listening_is_said_at_once(nats_server, connect):
    bus = await connect(nats_server.url)
    start_s = time.monotonic()
    with pytest.raises(NoWorkerError, match=r"faults\.nobody"):
        await bus.request("faults.nobody", b"", timeout_s=10)
    assert await bus.request_many("faults.nobody", b"", timeout_s=10) == []
    assert time.monotonic() - start_s < 1


async def test_no_reply_is_a_deadline_and_a_later_reply_is_dropped(nats_server, connect):
    worker, caller = await connect(nats_server.url), await connect(nats_server.url)
    loop = asyncio.get_running_loop()
    await worker.subscribe(
        "faults.late", lambda m: loop.call_later(0.15, worker.publish_nowait, m.reply, b"late")
    )
    await worker.barrier()
    with pytest.raises(DeadlineError):
        await caller.request("faults.late", b"", timeout_s=0.05)
    await asyncio.sleep(0.2)
    assert (await caller.request("faults.late", b"", timeout_s=5)).data == b"late"
    assert caller.in_flight == 0


async def test_a_cancelled_request_leaves_nothing_behind(nats_server, connect):
    bus = await connect(nats_server.url)
    await bus.subscribe("faults.hole", lambda _: None)
    task = asyncio.create_task(bus.request("faults.hole", b"", timeout_s=10))
    await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert bus.in_flight == 0


async def test_request_many_collects_from_all_and_stops_at_the_number_asked_for(
    nats_server, connect
):
    workers = [await connect(nats_server.url) for _ in range(3)]
    for i, bus in enumerate(workers):
        answer = f"{i}".encode()
        await bus.subscribe("faults.all", lambda m, b=bus, a=answer: b.publish_nowait(m.reply, a))
        await bus.barrier()
    caller = await connect(nats_server.url)
    replies = await caller.request_many("faults.all", b"", timeout_s=0.3)
    assert sorted(r.data for r in replies) == [b"0", b"1", b"2"]
    start_s = time.monotonic()
    assert len(await caller.request_many("faults.all", b"", timeout_s=10, max_replies=2)) == 2
    assert time.monotonic() - start_s < 2


async def test_no_server_is_one_line_with_the_url_and_the_remedy():
    port = natsserver.free_port()
    url = f"nats://someone:secret@127.0.0.1:{port}"
    start_s = time.monotonic()
    with pytest.raises(StartupError) as failed:
        await Bus.connect(BusOptions(url, connect_deadline_s=0.4))
    assert time.monotonic() - start_s < 2
    line = str(failed.value)
    assert "\n" not in line
    assert f"nats://127.0.0.1:{port}" in line
    assert "refused" in line and "--nats-url" in line
    assert "secret" not in line


async def test_a_server_that_comes_up_before_the_deadline_is_waited_for(start_nats):
    port = natsserver.free_port()
    connecting = asyncio.create_task(Bus.connect(BusOptions(f"nats://127.0.0.1:{port}")))
    await asyncio.sleep(0.3)
    start_nats(port=port)
    bus = await asyncio.wait_for(connecting, 5)
    assert bus.is_connected
    await bus.close()


async def test_something_that_is_no_nats_server_is_a_startup_error():
    async def talk(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH_9.2\r\n")
        await writer.drain()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(StartupError, match=f"{port}.*INFO"):
        await Bus.connect(BusOptions(f"nats://127.0.0.1:{port}", connect_deadline_s=0.4))
    server.close()


async def test_a_wrong_password_is_said_at_once_and_names_the_variables(start_nats):
    server = start_nats(extra=_USERS)
    start_s = time.monotonic()
    for user, who in (("worker", "user 'worker'"), ("", "a client without a user")):
        with pytest.raises(StartupError, match=f"{who}.*HEDGEROW_NATS_PASSWORD"):
            await Bus.connect(BusOptions(server.url, user=user, password="wrong"))
    assert time.monotonic() - start_s < 3


async def test_an_inbox_this_user_may_not_read_is_a_startup_error(start_nats):
    server = start_nats(extra=_USERS)
    with pytest.raises(StartupError, match=r"_INBOX\.>.*inbox prefix"):
        await Bus.connect(BusOptions(server.url, user="boxed", password="b"))
    bus = await Bus.connect(
        BusOptions(server.url, user="boxed", password="b", inbox_prefix="_INBOX_boxed")
    )
    await bus.subscribe("_INBOX_boxed.echo", lambda m: bus.publish_nowait(m.reply, b"yes"))
    await bus.close()


async def test_a_refused_subscription_is_told_by_the_barrier(start_nats, connect):
    server = start_nats(extra=_USERS)
    bus = await connect(server.url, user="boxed", password="b", inbox_prefix="_INBOX_boxed")
    await bus.subscribe("hedgerow.chunk.minilm", lambda _: None, queue="workers")
    with pytest.raises(ForbiddenError, match=r"hedgerow\.chunk\.minilm"):
        await bus.barrier()
    await bus.barrier()


async def test_tls_asked_for_and_not_offered_is_refused_before_the_password_is_sent(start_nats):
    server = start_nats(extra=_USERS)
    url = server.url.replace("nats://", "tls://")
    with pytest.raises(StartupError, match="no TLS"):
        await Bus.connect(BusOptions(url, user="worker", password="w", connect_deadline_s=0.5))


_USERS = """
authorization {
  users: [
    { user: worker, password: w }
    { user: boxed, password: b, permissions: { subscribe: { allow: ["_INBOX_boxed.>"] } } }
  ]
}
"""
