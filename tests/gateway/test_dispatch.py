"""Delivery of chunks against a bus of ten lines: one retry elsewhere, deadlines, cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest

from hedgerow_gateway import flight
from hedgerow_gateway.dispatch import Dispatcher, DispatchOptions, Work
from hedgerow_gateway.failures import error_body
from hedgerow_gateway.fleet import Fleet, Worker
from hedgerow_gateway.latency import Latencies
from hedgerow_gateway.splitter import EMBED, split
from hedgerow_gateway.tokenizer.encoded import from_ids
from hedgerow_shared import subjects
from hedgerow_shared.bus import Message
from hedgerow_shared.errors import (
    DeadlineError,
    HedgerowError,
    NoWorkerError,
    OverloadedError,
    RetryableError,
    RowError,
    TooLargeError,
    WorkerLostError,
)
from hedgerow_shared.ragged import EMBED as EMBEDDING
from hedgerow_shared.ragged import Lane
from hedgerow_shared.wire import Chunk, ChunkReply, decode_cancel, decode_chunk, encode_reply

GROUP = subjects.chunk("m")
OPTIONS = DispatchOptions(attempt_floor_s=0.05, attempt_unknown_s=0.05, window_tokens=8)


def rows_of(chunk: Chunk) -> list[object]:
    """A worker's answer that depends on the ids: their sum."""
    return [
        (np.array([chunk.batch.sequence(i).sum()], np.float32),)
        for i in range(chunk.batch.num_seqs)
    ]


def answer(worker: str, chunk: Chunk, **more: object) -> ChunkReply:
    return ChunkReply(chunk.id, worker, rows_of(chunk), fingerprint="f", **more)


def refusal(worker: str, chunk: Chunk, error: HedgerowError) -> ChunkReply:
    return ChunkReply(chunk.id, worker, error=error)


Behaviour = Callable[[Chunk], ChunkReply | HedgerowError | None]


@dataclass
class FakeCall:
    """A request on its way, as a task."""

    task: asyncio.Task[Message]

    async def wait(self, timeout_s: float) -> bool:
        await asyncio.wait({self.task}, timeout=timeout_s)
        return self.task.done()

    def result(self) -> Message:
        return self.task.result()

    def close(self) -> None:
        self.task.cancel()


@dataclass
class FakeBus:
    """subject -> what the listener does; None = silence."""

    listeners: dict[str, Behaviour]
    asked: list[str] = field(default_factory=list)
    cancelled: dict[str, list[str]] = field(default_factory=dict)
    in_flight: int = 0
    most_tokens: int = 0
    tokens: int = 0
    is_connected: bool = True
    alive: set[str] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)

    async def request(self, subject: str, data: bytes, *, timeout_s: float) -> Message:
        return await self.ping(subject.rpartition(".")[2])

    async def ask(self, subject: str, data: bytes) -> FakeCall:
        return FakeCall(asyncio.create_task(self.reply(subject, data)))

    async def reply(self, subject: str, data: bytes) -> Message:
        self.asked.append(subject)
        chunk = decode_chunk(data)
        listener = self.listeners.get(subject)
        self.tokens += chunk.batch.num_tokens
        self.most_tokens = max(self.most_tokens, self.tokens)
        try:
            await asyncio.sleep(0.001)
            found = NoWorkerError("nobody") if listener is None else listener(chunk)
            if found is None:
                await asyncio.Event().wait()
        finally:
            self.tokens -= chunk.batch.num_tokens
        if isinstance(found, HedgerowError):
            raise found
        return Message(subject, encode_reply(found))

    async def ping(self, worker: str) -> Message:
        await asyncio.sleep(0.01)
        if worker in self.gone:
            raise NoWorkerError("nobody")
        if worker not in self.alive:
            raise DeadlineError("silence")
        return Message("", b"{}")

    def publish_nowait(self, subject: str, data: bytes) -> None:
        self.cancelled.setdefault(subject, []).extend(decode_cancel(data))


@dataclass
class Setup:
    bus: FakeBus
    fleet: Fleet
    dispatcher: Dispatcher

    def work(self, count: int = 1, ttl_s: float = 1.0, keep_going: bool = False) -> Work:
        encoded = from_ids([[i + 1, 1, 1] for i in range(count)], 100)
        return Work(
            model="m",
            encoded=encoded,
            output=EMBEDDING,
            lane=Lane.QUERY,
            chunks=split(encoded.used.tolist(), 30_000, EMBED),
            deadline_s=asyncio.get_running_loop().time() + ttl_s,
            keep_going=keep_going,
        )


@dataclass
class FakeNear:
    """The worker of this process: takes what `free` says, answers like a listener."""

    behaviour: Behaviour
    free: bool = True
    offered: list[bool] = field(default_factory=list)

    def __call__(self, chunk: Chunk, deliver: Callable[[ChunkReply], None], *, alone: bool) -> str:
        self.offered.append(alone)
        reply = self.behaviour(chunk)
        if self.free and isinstance(reply, ChunkReply):
            asyncio.get_running_loop().call_soon(deliver, reply)
        return "w1" if self.free else ""


def setup(
    listeners: dict[str, Behaviour],
    workers: tuple[str, ...] = ("w1", "w2"),
    near: FakeNear | None = None,
    options: DispatchOptions = OPTIONS,
) -> Setup:
    bus = FakeBus(listeners)
    fleet = Fleet(bus, {"m": "g"}, asyncio.get_running_loop().time)
    for worker in workers:
        fleet.workers[worker] = Worker(worker, {"m": None}, 0.0)
    return Setup(bus, fleet, Dispatcher(bus, fleet, "gw", options, near))


def direct(worker: str) -> str:
    return subjects.worker_chunk(worker, "m")


async def test_rows_come_back_in_the_order_of_the_inputs():
    s = setup({GROUP: lambda c: answer("w1", c, queue_ms=2.0, compute_ms=3.0)})
    done = await s.dispatcher.run(s.work(11))
    assert [int(row[0][0]) for row in done.rows] == [i + 3 for i in range(11)]
    assert (done.fingerprint, done.queue_ms, done.compute_ms) == ("f", 2.0, 3.0)


async def test_a_free_worker_of_this_process_is_asked_without_the_bus():
    near = FakeNear(lambda c: answer("w1", c))
    s = setup({}, near=near)
    done = await s.dispatcher.run(s.work(11))
    assert [int(row[0][0]) for row in done.rows] == [i + 3 for i in range(11)]
    assert s.bus.asked == []
    assert s.bus.cancelled == {}


async def test_the_worker_of_this_process_is_told_whether_it_is_alone():
    near = FakeNear(lambda c: answer("w1", c))
    for workers, alone in ((("w1", "w2"), False), (("w1",), True), ((), True)):
        s = setup({}, workers, near)
        await s.dispatcher.run(s.work())
        assert near.offered.pop() is alone


async def test_what_the_worker_of_this_process_does_not_take_goes_over_the_bus():
    near = FakeNear(lambda c: None, free=False)
    s = setup({GROUP: lambda c: answer("w2", c)}, near=near)
    done = await s.dispatcher.run(s.work())
    assert [int(row[0][0]) for row in done.rows] == [3]
    assert s.bus.asked == [GROUP]


async def test_a_silent_worker_of_this_process_is_passed_over_too():
    s = setup({direct("w2"): lambda c: answer("w2", c)}, near=FakeNear(lambda c: None))
    task = asyncio.create_task(s.dispatcher.run(s.work()))
    await asyncio.sleep(0.02)
    s.fleet.heard("w1", 0)  # it says something and has less to do, but it is known to have this
    s.fleet.heard("w2", 5)
    assert [int(row[0][0]) for row in (await task).rows] == [3]
    assert s.bus.asked == [direct("w2")]
    await asyncio.sleep(0)
    assert subjects.worker_cancel("w1") in s.bus.cancelled, "the first one may still work on it"


async def test_a_worker_of_this_process_that_goes_down_costs_one_attempt():
    near = FakeNear(lambda c: refusal("w1", c, WorkerLostError("going down")))
    s = setup({direct("w2"): lambda c: answer("w2", c)}, near=near)
    assert [int(row[0][0]) for row in (await s.dispatcher.run(s.work())).rows] == [3]


async def test_never_more_tokens_in_flight_than_the_window_of_the_fleet():
    s = setup({GROUP: lambda c: answer("w1", c)})
    await s.dispatcher.run(s.work(40))
    assert s.bus.most_tokens <= OPTIONS.window_tokens * 2


async def test_nobody_listening_is_said_at_once_and_not_retried():
    s = setup({})
    with pytest.raises(NoWorkerError) as raised:
        await s.dispatcher.run(s.work(ttl_s=60))
    assert s.bus.asked == [GROUP]
    assert raised.value.message == "no worker serves model 'm' at the moment"
    assert s.fleet.missing() == ["m"]


@pytest.mark.parametrize(
    "error",
    [DeadlineError(f"no reply from {GROUP}"), TooLargeError(f"a message to {GROUP}: too large")],
    ids=["late", "large"],
)
async def test_no_error_of_the_bus_tells_a_caller_its_subject(error):
    s = setup({GROUP: lambda c: error})
    with pytest.raises(type(error)) as raised:
        await s.dispatcher.run(s.work(ttl_s=1))
    assert GROUP not in error_body(raised.value)["error"]["message"]


async def test_a_silent_worker_is_passed_over_for_one_heard_since():
    s = setup({GROUP: lambda c: None, direct("w2"): lambda c: answer("w2", c)})
    work = s.work()
    task = asyncio.create_task(s.dispatcher.run(work))
    await asyncio.sleep(0.02)
    s.fleet.heard("w2", 5)
    done = await task
    assert [int(row[0][0]) for row in done.rows] == [3]
    assert s.bus.asked == [GROUP, direct("w2")]
    await asyncio.sleep(0)
    assert set(s.bus.cancelled) == {subjects.worker_cancel("w1"), subjects.worker_cancel("w2")}


async def test_with_nobody_else_alive_the_request_waits_for_its_own_deadline():
    s = setup({GROUP: lambda c: None})
    began = asyncio.get_running_loop().time()
    with pytest.raises(DeadlineError):
        await s.dispatcher.run(s.work(ttl_s=0.2))
    assert 0.15 < asyncio.get_running_loop().time() - began < 1
    assert s.bus.asked == [GROUP]


async def test_when_nobody_was_heard_since_the_workers_are_asked_who_lives():
    s = setup({GROUP: lambda c: None, direct("w2"): lambda c: answer("w2", c)})
    s.bus.alive = {"w2"}
    assert (await s.dispatcher.run(s.work())).rows
    assert s.bus.asked == [GROUP, direct("w2")]


async def test_a_second_attempt_that_finds_nobody_goes_on_to_the_next_worker():
    s = setup({GROUP: lambda c: None, direct("w2"): lambda c: answer("w2", c)})
    s.bus.alive = {"w2"}
    task = asyncio.create_task(s.dispatcher.run(s.work()))
    await asyncio.sleep(0.02)
    s.fleet.heard("w1", 0)  # it answered another chunk, and died: nobody listens on its subject
    assert (await task).rows
    assert s.bus.asked == [GROUP, direct("w1"), direct("w2")]
    assert list(s.fleet.workers) == ["w2"]


async def test_a_refusal_whose_second_worker_is_gone_goes_to_the_third():
    full = OverloadedError("full")
    s = setup(
        {GROUP: lambda c: refusal("w1", c, full), direct("w3"): lambda c: answer("w3", c)},
        ("w1", "w2", "w3"),
    )
    s.fleet.heard("w3", 100)
    assert (await s.dispatcher.run(s.work())).rows
    assert s.bus.asked == [GROUP, direct("w2"), direct("w3")]


async def test_a_worker_that_is_gone_is_replaced_by_one_that_joins(monkeypatch):
    s = setup({GROUP: lambda c: None, direct("w9"): lambda c: answer("w9", c)}, ("w1",))
    s.bus.gone = {"w1"}
    task = asyncio.create_task(s.dispatcher.run(s.work(ttl_s=5)))
    await asyncio.sleep(0.15)
    assert not s.fleet.workers
    s.fleet.workers["w9"] = Worker("w9", {"m": None}, asyncio.get_running_loop().time())
    assert (await task).rows


async def test_work_of_a_dead_fleet_is_given_up_before_its_deadline(monkeypatch):
    monkeypatch.setattr(flight, "RECONNECT_S", 0.1)
    s = setup({GROUP: lambda c: None}, ("w1",))
    s.bus.gone = {"w1"}
    with pytest.raises(WorkerLostError):
        await asyncio.wait_for(s.dispatcher.run(s.work(ttl_s=60)), 5)


async def test_silence_of_a_dead_worker_is_not_learned_as_the_time_that_chunks_take():
    s = setup({GROUP: lambda c: None, direct("w2"): lambda c: answer("w2", c)})
    s.bus.alive = {"w2"}
    loop = asyncio.get_running_loop()
    for _ in range(20):
        began_s = loop.time()
        await s.dispatcher.run(s.work(ttl_s=30))
        assert loop.time() - began_s < 0.5, "each waits for its first attempt as long as the first"


async def test_a_first_attempt_leaves_time_for_a_second_however_slow_the_last_ones_were():
    s = setup({GROUP: lambda c: None, direct("w2"): lambda c: answer("w2", c)})
    s.fleet.workers["w2"].heard_s = float("inf")
    slow = s.dispatcher._latencies.setdefault(("m", Lane.QUERY), Latencies())
    for _ in range(50):
        slow.add(60.0)
    assert (await s.dispatcher.run(s.work(ttl_s=1.0))).rows


async def test_a_short_deadline_leaves_time_for_a_second_attempt_too():
    listeners = {GROUP: lambda c: None, direct("w2"): lambda c: answer("w2", c)}
    s = setup(listeners, options=DispatchOptions())
    s.bus.alive = {"w2"}
    for ttl_s in (0.9, 0.3):
        assert (await s.dispatcher.run(s.work(ttl_s=ttl_s))).rows, ttl_s


async def test_a_late_first_answer_still_wins():
    slow = asyncio.Event()

    def first(chunk: Chunk) -> ChunkReply:
        return answer("w1", chunk)

    s = setup({direct("w2"): lambda c: None})

    async def reply(subject: str, data: bytes) -> Message:
        if subject == GROUP:
            await slow.wait()
            return Message(subject, encode_reply(first(decode_chunk(data))))
        return await FakeBus.reply(s.bus, subject, data)

    s.bus.reply = reply
    task = asyncio.create_task(s.dispatcher.run(s.work()))
    await asyncio.sleep(0.02)
    s.fleet.heard("w2", 0)
    await asyncio.sleep(0.1)
    assert s.bus.asked == [direct("w2")]
    slow.set()
    assert (await task).rows


async def test_a_full_worker_sends_the_chunk_to_the_least_loaded_other():
    full = OverloadedError("full", retry_after_s=0.7)
    s = setup(
        {GROUP: lambda c: refusal("w1", c, full), direct("w3"): lambda c: answer("w3", c)},
        ("w1", "w2", "w3"),
    )
    s.fleet.heard("w2", 900)
    s.fleet.heard("w3", 10)
    assert (await s.dispatcher.run(s.work())).rows
    assert s.bus.asked == [GROUP, direct("w3")]


async def test_a_full_fleet_passes_the_refusal_on_with_its_hint():
    full = OverloadedError("full", retry_after_s=0.7)
    s = setup(
        {GROUP: lambda c: refusal("w1", c, full), direct("w2"): lambda c: refusal("w2", c, full)}
    )
    with pytest.raises(OverloadedError) as raised:
        await s.dispatcher.run(s.work())
    assert raised.value.retry_after_s == 0.7
    assert len(s.bus.asked) == 2


async def test_what_a_full_fleet_refused_is_refused_at_once_until_there_may_be_room():
    full = OverloadedError("full", retry_after_s=0.4)
    s = setup(
        {GROUP: lambda c: refusal("w1", c, full), direct("w2"): lambda c: refusal("w2", c, full)}
    )
    s.fleet.check_room("m", Lane.QUERY)
    with pytest.raises(OverloadedError):
        await s.dispatcher.run(s.work())
    with pytest.raises(OverloadedError) as raised:
        s.fleet.check_room("m", Lane.QUERY)
    assert 0 < raised.value.retry_after_s <= 0.2
    with pytest.raises(OverloadedError):
        s.fleet.check_room("m", Lane.BULK)  # what is full for queries is so for what waits behind
    await asyncio.sleep(0.25)
    s.fleet.check_room("m", Lane.QUERY)


async def test_one_worker_with_room_is_enough_and_bulk_that_waits_shuts_no_query_out():
    full = OverloadedError("full", retry_after_s=60.0)
    s = setup({GROUP: lambda c: refusal("w1", c, full), direct("w2"): lambda c: answer("w2", c)})
    assert (await s.dispatcher.run(s.work())).rows
    s.fleet.check_room("m", Lane.QUERY)
    for worker in ("w1", "w2"):
        s.fleet.refused(worker, Lane.BULK, 60.0)
    s.fleet.took("w1", Lane.QUERY)
    s.fleet.check_room("m", Lane.QUERY)
    with pytest.raises(OverloadedError):
        s.fleet.check_room("m", Lane.BULK)
    s.fleet.took("w2", Lane.BULK)
    s.fleet.check_room("m", Lane.BULK)


async def test_a_lost_bus_is_waited_for_and_the_chunk_sent_again():
    s = setup({GROUP: lambda c: WorkerLostError("bus down")})
    task = asyncio.create_task(s.dispatcher.run(s.work()))
    await asyncio.sleep(0.01)
    s.bus.is_connected = False
    await asyncio.sleep(0.05)
    s.bus.listeners[GROUP] = lambda c: answer("w1", c)
    s.bus.is_connected = True
    assert (await task).rows


async def test_a_bus_that_stays_away_is_a_lost_worker_not_a_hang():
    s = setup({GROUP: lambda c: WorkerLostError("bus down")})
    s.bus.is_connected = False
    with pytest.raises((WorkerLostError, DeadlineError)):
        await s.dispatcher.run(s.work(ttl_s=0.2))


async def test_a_bad_row_does_not_cost_its_neighbours():
    def one_bad(chunk: Chunk) -> ChunkReply:
        rows = rows_of(chunk)
        rows[0] = RowError("not a finite number")
        return ChunkReply(chunk.id, "w1", rows, fingerprint="f")

    s = setup({GROUP: one_bad})
    rows = (await s.dispatcher.run(s.work(2))).rows
    assert isinstance(rows[0], RowError)
    assert int(rows[1][0][0]) == 4


async def test_the_first_failed_chunk_ends_a_request_that_wants_all():
    full = OverloadedError("full")
    s = setup({GROUP: lambda c: refusal("w1", c, full)}, ("w1",))
    with pytest.raises(OverloadedError):
        await s.dispatcher.run(s.work(100))
    assert len(s.bus.asked) < 20


async def test_a_request_that_keeps_going_gets_the_error_in_the_failed_rows():
    full = OverloadedError("full")
    seen: list[str] = []

    def every_second(chunk: Chunk) -> ChunkReply:
        seen.append(chunk.id)
        return refusal("w1", chunk, full) if len(seen) == 1 else answer("w1", chunk)

    s = setup({GROUP: every_second}, ("w1",))
    rows = (await s.dispatcher.run(s.work(6, keep_going=True))).rows
    assert [isinstance(row, OverloadedError) for row in rows] == [True, True, *[False] * 4]


async def test_when_the_caller_goes_away_every_worker_is_told_once():
    s = setup({GROUP: lambda c: None})
    task = asyncio.create_task(s.dispatcher.run(s.work(4)))
    await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.sleep(0.01)
    ids = s.bus.cancelled[subjects.worker_cancel("w1")]
    assert len(ids) == len(set(ids)) == 2
    assert s.bus.cancelled[subjects.worker_cancel("w2")] == ids


async def test_rows_of_different_weights_are_never_mixed_in_one_answer():
    prints = iter("ab")
    s = setup({GROUP: lambda c: ChunkReply(c.id, "w1", rows_of(c), fingerprint=next(prints))})
    with pytest.raises(RetryableError) as raised:
        await s.dispatcher.run(s.work(4))
    assert "a, b" in raised.value.message


async def test_a_reply_with_too_few_rows_is_an_error_not_a_shift():
    s = setup({GROUP: lambda c: ChunkReply(c.id, "w1", rows_of(c)[:-1], fingerprint="f")})
    with pytest.raises(HedgerowError):
        await s.dispatcher.run(s.work(2))


async def test_the_time_left_travels_with_the_chunk():
    left: list[float] = []

    def note(chunk: Chunk) -> ChunkReply:
        left.append(chunk.ttl_ms)
        return answer("w1", chunk)

    s = setup({GROUP: note})
    await s.dispatcher.run(s.work(ttl_s=0.5))
    assert 300 < left[0] <= 500
    with pytest.raises(DeadlineError):
        await s.dispatcher.run(s.work(ttl_s=0))
