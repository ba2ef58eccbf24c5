"""Roll calls on a real bus: who stays when answers come late, or when two meet in the middle."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec
import numpy as np
import pytest

from hedgerow_scheduler.canary import Canary
from hedgerow_scheduler.rollcall import Entry, Report, RollCall
from hedgerow_shared import subjects
from hedgerow_shared.bus import Bus, BusOptions, Message
from hedgerow_shared.errors import StartupError
from tests.nats_fixture import NatsHandle
from tests.scheduler.worker_process import MODEL, WorkerProcess, watch_fleet
from tests.waiting import until

pytestmark = pytest.mark.system
LATE_S = 2.0
"""Longer than both questions wait together, on a busy machine too."""


def entry(fingerprint: str) -> Entry:
    rows = np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)
    return Entry(fingerprint, Canary("embed", rows, 0.9999))


@pytest.fixture
def nats(start_nats: Callable[..., NatsHandle]) -> NatsHandle:
    return start_nats(jetstream=False)


@pytest.fixture
async def connect(nats: NatsHandle) -> AsyncIterator[Callable[[], Awaitable[Bus]]]:
    buses: list[Bus] = []

    async def make() -> Bus:
        buses.append(await Bus.connect(BusOptions(url=nats.url)))
        return buses[-1]

    yield make
    for bus in buses:
        await bus.close(patience_s=0.0)


class Late:
    """A worker that answers, but only after a while, as one does whose machine is busy."""

    def __init__(self, bus: Bus, worker: str, *, serving: bool, first: int = 1) -> None:
        """first: the number of the first question that it answers at all"""
        self._bus, self._first, self.asked = bus, first, 0
        shown = entry("other")
        self._report = msgspec.msgpack.encode(
            Report(
                worker=worker,
                serving=serving,
                fingerprint=shown.fingerprint,
                rows=shown.canary.rows.tobytes(),
                shape=(4, 8),
            )
        )

    async def listen(self) -> None:
        await self._bus.subscribe(subjects.canary(MODEL), self._take)
        await self._bus.barrier()

    def _take(self, message: Message) -> None:
        self.asked += 1
        if self.asked >= self._first:
            loop = asyncio.get_running_loop()
            loop.call_later(LATE_S, self._bus.publish_nowait, message.reply, self._report)


def roll_call(
    bus: Bus,
    worker: str,
    fingerprint: str,
    late: list[str],
    *,
    model: str = MODEL,
    allow_mixed: bool = False,
) -> RollCall:
    made = RollCall(
        bus,
        worker,
        {model: entry(fingerprint)},
        allow_mixed=allow_mixed,
        on_late=lambda: late.append(made.reason),
    )
    return made


@pytest.mark.parametrize(
    ("name", "serving", "first", "leaves"),
    [
        pytest.param("w9", True, 1, True, id="one that serves"),
        pytest.param("w9", False, 1, True, id="one that was here before"),
        pytest.param("w1", False, 2, True, id="one that came at once, by the name before"),
        pytest.param("w9", False, 2, False, id="one that came at once, by the name behind"),
    ],
)
async def test_an_answer_that_comes_late_counts(connect, name, serving, first, leaves):
    other = Late(await connect(), name, serving=serving, first=first)
    await other.listen()
    late: list[str] = []
    ours = roll_call(await connect(), "w5", "mine", late)
    await ours.check()
    assert other.asked == 2 and late == []
    if leaves:
        await until(lambda: bool(late))
    else:
        await asyncio.sleep(LATE_S + 0.3)
    assert bool(late) is bool(ours.reason) is leaves
    if leaves:
        assert len(late) == 1 and f"worker {name} serves fingerprint other" in late[0]
    ours.close()


async def test_a_worker_that_has_joined_leaves_again_in_order(connect, nats, tmp_path):
    bus = await connect()
    events = await watch_fleet(bus)
    await Late(bus, "w1", serving=True).listen()
    worker = WorkerProcess(tmp_path, nats.url, "w5", "--bulk", "off")
    try:
        assert await worker.ended() == 2
    finally:
        worker.stop()
    assert [event.event for event in events] == ["joined", "left"]
    lines = worker.log.read_text().splitlines()
    assert lines[-1].startswith(f"hedgerow-worker: model {MODEL}: worker w1 serves fingerprint")
    assert any("drained" in line for line in lines)


async def test_a_late_answer_only_warns_where_a_mixed_fleet_is_wanted(connect, caplog):
    other = Late(await connect(), "w1", serving=True)
    await other.listen()
    late: list[str] = []
    ours = roll_call(await connect(), "w5", "mine", late, allow_mixed=True)
    await ours.check()
    await until(lambda: "joining a mixed fleet, as asked" in caplog.text)
    assert late == [] and ours.reason == ""
    ours.close()


@pytest.mark.parametrize(("early", "later"), [("w1", "w2"), ("w2", "w1")])
async def test_who_comes_second_stays_away_whatever_the_names(connect, early, later):
    late: list[str] = []
    first = roll_call(await connect(), early, "mine", late)
    await first.check()
    second = roll_call(await connect(), later, "other", late)
    with pytest.raises(StartupError, match=f"worker {early} serves fingerprint mine"):
        await second.check()
    await asyncio.sleep(0.2)
    assert late == [] and first.reason == ""
    first.close()


async def test_of_many_pairs_that_start_at_once_exactly_one_stays(connect):
    buses = [await connect(), await connect()]
    for turn in range(8):
        late: list[str] = []
        pair = [
            roll_call(bus, name, name, late, model=f"{MODEL}{turn}")  # who stays goes on answering
            for bus, name in zip(buses, ("w1", "w2")[:: 1 if turn % 2 else -1], strict=True)
        ]
        await asyncio.gather(*(one.check() for one in pair), return_exceptions=True)
        await until(lambda pair=pair: any(one.reason for one in pair))
        await asyncio.sleep(0.1)
        assert [bool(one.reason) for one in pair].count(True) == 1
        for one in pair:
            one.close()


@pytest.mark.parametrize("pauses", ["w1", "w2"])
async def test_one_that_stands_still_between_its_questions_meets_the_other(
    connect, monkeypatch, pauses
):
    late: list[str] = []
    bus = await connect()
    slow = roll_call(bus, pauses, "slow", late)
    quick = roll_call(await connect(), "w2" if pauses == "w1" else "w1", "quick", late)
    stands, go_on, subscribe = asyncio.Event(), asyncio.Event(), bus.subscribe

    async def subscribe_later(*args: object, **kwargs: object) -> object:
        stands.set()
        await go_on.wait()
        return await subscribe(*args, **kwargs)

    monkeypatch.setattr(bus, "subscribe", subscribe_later)
    checking = asyncio.create_task(slow.check())
    await stands.wait()
    await quick.check()
    go_on.set()
    await asyncio.gather(checking, return_exceptions=True)
    await until(lambda: bool(slow.reason or quick.reason))
    await asyncio.sleep(0.1)
    gone = {one: bool(one.reason) for one in (slow, quick)}
    assert gone == {slow: pauses == "w2", quick: pauses == "w1"}
    assert len(late) == (pauses == "w1")
    for one in (slow, quick):
        one.close()


async def test_one_that_is_about_to_leave_sends_nobody_away(connect):
    other = Late(await connect(), "w1", serving=True)
    await other.listen()
    late: list[str] = []
    leaving = roll_call(await connect(), "w5", "mine", late)
    await leaving.check()
    await until(lambda: bool(late))
    replies = await (await connect()).request_many(subjects.canary(MODEL), b"", timeout_s=0.3)
    assert replies == []
