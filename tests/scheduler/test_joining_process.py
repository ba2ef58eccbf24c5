"""Real workers that meet: alike ones join each other, others stay away and say why."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from hedgerow_shared import fleet, subjects
from hedgerow_shared.bus import Bus, BusOptions
from tests.nats_fixture import NatsHandle
from tests.scheduler.worker_process import MODEL, WorkerProcess, watch_fleet
from tests.waiting import until

pytestmark = pytest.mark.system
Start = Callable[..., WorkerProcess]


@pytest.fixture
def nats(start_nats: Callable[..., NatsHandle]) -> NatsHandle:
    return start_nats(jetstream=False)


@pytest.fixture
async def bus(nats: NatsHandle) -> AsyncIterator[Bus]:
    bus = await Bus.connect(BusOptions(url=nats.url))
    yield bus
    await bus.close(patience_s=0.1)


@pytest.fixture
def start(tmp_path: Path, nats: NatsHandle) -> Iterator[Start]:
    started: list[WorkerProcess] = []

    def make(worker_id: str, *flags: str) -> WorkerProcess:
        started.append(WorkerProcess(tmp_path, nats.url, worker_id, "--bulk", "off", *flags))
        return started[-1]

    yield make
    for worker in started:
        worker.stop()


def last_line(worker: WorkerProcess) -> str:
    return worker.log.read_text().strip().splitlines()[-1]


async def test_alike_workers_join_and_announce_one_canary(bus: Bus, start: Start) -> None:
    events = await watch_fleet(bus)
    for name in ("w1", "w2"):
        await start(name).joined(bus)
    await until(lambda: len(events) == 2)
    digests = {event.models[MODEL].canary for event in events}
    assert len(digests) == 1 and len(digests.pop()) == 12
    (info,) = await bus.request_many("$SRV.INFO.hedgerow.w1", b"", timeout_s=5, max_replies=1)
    found = fleet.parse_metadata(json.loads(info.data)["metadata"])
    assert found is not None and found.models[MODEL].canary == events[0].models[MODEL].canary


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        pytest.param(("--fake-skew", "0.3"), "computes wrongly", id="a machine that is wrong"),
        pytest.param(("--fake-version", "other"), "one --dtype", id="other numbers"),
        pytest.param(
            ("--fake-version", "other", "--fake-skew", "0.3"), "other weights", id="other weights"
        ),
    ],
)
async def test_one_that_computes_something_else_stays_away(
    bus: Bus, start: Start, flags: tuple[str, ...], said: str
) -> None:
    await start("w1").joined(bus)
    events = await watch_fleet(bus)
    stranger = start("w2", *flags)
    assert await stranger.ended() == 2
    line = last_line(stranger)
    assert line.startswith(f"hedgerow-worker: model {MODEL}: ") and said in line
    assert "w1" in line and "--allow-mixed-fleet" in line
    of_it = [event for event in events if event.worker == "w2"]
    assert of_it == [], "it took no work and announced nothing"


async def test_it_joins_all_the_same_when_told_to(bus: Bus, start: Start) -> None:
    await start("w1").joined(bus)
    mixed = start("w2", "--fake-version", "other", "--allow-mixed-fleet")
    await mixed.joined(bus)
    assert "joining a mixed fleet, as asked" in mixed.log.read_text()


async def test_of_two_different_ones_that_start_at_once_one_stays_away(
    bus: Bus, start: Start
) -> None:
    pair = [start("w1"), start("w2", "--fake-version", "other")]
    ends = [asyncio.create_task(worker.ended(30)) for worker in pair]
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    await asyncio.sleep(1.0)
    left = [w for w in pair if w.process.poll() is None]
    assert [w.process.poll() for w in pair if w not in left] == [2]
    await left[0].joined(bus)
    left[0].stop()
    await asyncio.wait(ends)


@pytest.mark.parametrize("garbage", [b"", b"\x00", b"\x80", b"not one of ours"])
async def test_garbage_in_answer_to_the_roll_call_keeps_nobody_away(
    bus: Bus, start: Start, garbage: bytes
) -> None:
    await bus.subscribe(
        subjects.canary(MODEL), lambda m: bus.publish_nowait(m.reply, garbage) if m.reply else None
    )
    await bus.barrier()
    await start("w1").joined(bus)
