"""The pieces of the bus that need no server: pending limits, inbox, reconnect policy, options."""

import asyncio
import statistics
from types import SimpleNamespace

import pytest

from hedgerow_shared.bus import BusOptions
from hedgerow_shared.bus.dial import next_server, parse_refusal
from hedgerow_shared.bus.inbox import Call, Inbox
from hedgerow_shared.bus.message import Message, is_subject
from hedgerow_shared.bus.options import without_password
from hedgerow_shared.bus.subscription import Pending, Subscription
from hedgerow_shared.errors import StartupError, WorkerLostError


def pending(handler, *, max_msgs=100, max_bytes=10_000, on_dropped=None) -> Pending:
    return Pending(handler, max_msgs=max_msgs, max_bytes=max_bytes, on_dropped=on_dropped)


async def test_over_the_message_limit_the_newest_are_dropped_and_their_senders_named():
    got, dropped = [], []
    queue = pending(lambda m: got.append(m.data), max_msgs=3, on_dropped=dropped.append)
    for i in range(8):
        queue.take(Message("s", b"%d" % i, f"reply.{i}"))
    await queue.empty()
    assert got == [b"0", b"1", b"2"]
    assert dropped == [f"reply.{i}" for i in range(3, 8)]
    assert queue.dropped == 5


async def test_over_the_byte_limit_too_and_small_ones_still_fit():
    got, dropped = [], []
    queue = pending(lambda m: got.append(m.data), max_bytes=10, on_dropped=dropped.append)
    for body in (b"x" * 8, b"y" * 3, b"z" * 2):
        queue.take(Message("s", body, body[:1].decode()))
    await queue.empty()
    assert got == [b"x" * 8, b"z" * 2]
    assert dropped == ["y"]


async def test_room_comes_back_as_the_handler_takes_messages():
    got = []
    queue = pending(lambda m: got.append(m.data), max_msgs=2)
    for _ in range(5):
        queue.take(Message("s", b"a"))
        queue.take(Message("s", b"b"))
        await queue.empty()
    assert got == [b"a", b"b"] * 5
    assert queue.dropped == 0


async def test_messages_keep_their_order_and_the_loop_gets_turns_in_between():
    got, turns = [], []
    queue = pending(lambda m: got.append(int(m.data)), max_msgs=1000)
    for i in range(200):
        queue.take(Message("s", b"%d" % i))
    asyncio.get_running_loop().call_soon(lambda: turns.append(len(got)))
    await queue.empty()
    assert got == list(range(200))
    assert turns and turns[0] < 200


async def test_a_handler_that_raises_costs_only_its_own_message():
    got = []

    def handler(message: Message) -> None:
        if message.data == b"bad":
            raise ValueError("bad")
        got.append(message.data)

    queue = pending(handler)
    for body in (b"1", b"bad", b"2"):
        queue.take(Message("s", body))
    await queue.empty()
    assert got == [b"1", b"2"]


async def test_unsubscribe_throws_away_what_waits_and_drain_does_not():
    for end, expected in (("unsubscribe", []), ("drain", [b"x"] * 5)):
        got: list[bytes] = []
        queue = pending(lambda m, got=got: got.append(m.data))
        left: list[bool] = []

        async def leave(after: bool, left=left) -> None:
            left.append(after)

        subscription = Subscription("s", "", queue, leave)
        for _ in range(5):
            queue.take(Message("s", b"x"))
        await getattr(subscription, end)()
        await getattr(subscription, end)()
        await asyncio.sleep(0)
        assert got == expected
        assert left == [end == "drain"]


async def test_each_failed_call_gets_an_error_of_its_own():
    inbox = Inbox("_INBOX")
    loop = asyncio.get_running_loop()
    calls = [Call("s", inbox, loop) for _ in range(2)]
    replies = [call.reply for call in calls]
    assert len(set(replies)) == 2
    assert all(r.startswith(inbox.wildcard[:-1]) for r in replies)
    inbox.fail_all(lambda: WorkerLostError("down"))
    errors = [_raised(call) for call in calls]
    assert errors[0] is not errors[1]
    inbox.deliver(Message(replies[0], b"late"))
    assert _raised(calls[0]) is errors[0]
    for call in calls:
        call.close()
    inbox.deliver(Message(replies[0], b"later"))
    assert inbox.in_flight == 0


def _raised(call: Call) -> Exception:
    with pytest.raises(WorkerLostError) as raised:
        call.result()
    return raised.value


async def test_a_call_may_be_looked_at_twice_and_loses_no_reply():
    inbox = Inbox("_INBOX")
    call = Call("s", inbox, asyncio.get_running_loop())
    assert not await call.wait(0.01)
    asyncio.get_running_loop().call_later(0.01, inbox.deliver, Message(call.reply, b"here"))
    assert await call.wait(5.0)
    assert await call.wait(0.0)
    assert call.result().data == b"here"


async def test_whoever_stops_waiting_for_a_call_leaves_it_to_others():
    inbox = Inbox("_INBOX")
    call = Call("s", inbox, asyncio.get_running_loop())
    waiting = asyncio.create_task(call.wait(60.0))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    inbox.deliver(Message(call.reply, b"here"))
    assert await call.wait(0.0)


def server(name: str, reconnects: int) -> SimpleNamespace:
    return SimpleNamespace(name=name, reconnects=reconnects)


def test_a_reconnect_goes_to_the_server_tried_least():
    pool = [server("a", 3), server("b", 1), server("c", 2)]
    assert {next_server(pool, {})[0].name for _ in range(20)} == {"b"}
    equal = [server("a", 1), server("b", 1)]
    assert {next_server(equal, {})[0].name for _ in range(60)} == {"a", "b"}


def test_reconnect_delays_grow_are_spread_and_stay_below_a_second():
    first = [next_server([server("a", 0)], {})[1] for _ in range(200)]
    later = [next_server([server("a", 50)], {})[1] for _ in range(200)]
    assert max(first) <= 0.05
    assert min(later) >= 0.2 and max(later) <= 1.0
    assert statistics.pstdev(later) > 0.1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('nats: permissions violation for publish to "a.b"', ("publish to", "a.b")),
        (
            'nats: permissions violation for subscription to "a.b" using queue "q"',
            ("subscribe to", "a.b"),
        ),
        ("nats: stale connection", None),
    ],
)
def test_a_refusal_is_told_from_other_errors(text, expected):
    assert parse_refusal(text) == expected


def test_passwords_appear_in_no_text():
    assert without_password("nats://me:secret@host:4222") == "nats://host:4222"
    assert without_password("nats://host:4222") == "nats://host:4222"
    assert "secret" not in repr(BusOptions("nats://host", password="secret"))


def test_several_servers_are_separated_by_commas():
    assert BusOptions("nats://a:1, nats://b:2,").servers == ["nats://a:1", "nats://b:2"]


def test_a_missing_certificate_is_named(tmp_path):
    missing = str(tmp_path / "ca.pem")
    with pytest.raises(StartupError, match=r"ca\.pem"):
        BusOptions(tls_ca=missing).ssl_context()


@pytest.mark.parametrize(
    ("text", "good"),
    [("a.b", True), ("", False), ("a b", False), ("a\r\nPUB", False), ("a\tb", False), ("é", True)],
)
def test_what_can_be_published_to(text, good):
    assert is_subject(text) is good
