"""The simulator obeys its own model, and drives the real packer."""

from __future__ import annotations

import pytest

from benchmarks.simulator.clock import Clock
from benchmarks.simulator.device import Device, DeviceModel
from benchmarks.simulator.fleet import HOP_S, PULL_S, Dispatch, Fleet, Request
from benchmarks.simulator.run import PULL, offered
from hedgerow_scheduler.packer import Policy
from hedgerow_shared.ragged import Lane

TOKEN_A_MS = DeviceModel(name="1 token a ms", floor_s=0.0, tokens_per_s=1e3)


def _layered(overtaking: str) -> DeviceModel:
    return DeviceModel(name="x", floor_s=0.0, tokens_per_s=1e3, overtaking=overtaking, layers=4)


def test_calls_are_made_in_order_of_time_then_of_asking() -> None:
    clock, seen = Clock(), []
    clock.after(2.0, lambda: seen.append("late"))
    clock.after(1.0, lambda: seen.append("first"))
    clock.after(
        1.0, lambda: (seen.append("second"), clock.after(0.5, lambda: seen.append("third")))
    )
    clock.run(3.0)
    assert (seen, clock.now_s) == (["first", "second", "third", "late"], 3.0)


@pytest.mark.parametrize(
    ("overtaking", "query_ms", "bulk_ms"),
    [
        # Two bulk passes of 100 ms; after 30 ms a query of 10 ms comes.
        pytest.param("none", 210, (100, 200), id="behind both"),
        pytest.param("pass", 110, (100, 210), id="before the queued one"),
        pytest.param("layer", 60, (110, 210), id="at the layer boundary at 50 ms"),
    ],
)
def test_a_query_overtakes_bulk_as_the_device_allows(
    overtaking: str, query_ms: float, bulk_ms: tuple[float, float]
) -> None:
    clock, ends = Clock(), {}
    device = Device(clock, _layered(overtaking))
    for name in ("bulk 1", "bulk 2"):
        device.submit(Lane.BULK, 100, lambda n=name: ends.setdefault(n, clock.now_s))
    clock.after(
        0.03, lambda: device.submit(Lane.QUERY, 10, lambda: ends.setdefault("query", clock.now_s))
    )
    clock.run(1.0)
    found = [ends[name] * 1e3 for name in ("query", "bulk 1", "bulk 2")]
    assert found == pytest.approx([query_ms, *bulk_ms])
    assert device.busy_s == pytest.approx(0.21)


def _finished_ms(dispatch: Dispatch, requests: list[tuple[Lane, tuple[int, ...]]]) -> list[float]:
    clock, ends = Clock(), {}
    fleet = Fleet(clock, dispatch, workers=1, model=TOKEN_A_MS, policy=Policy(budget=100))
    for number, (lane, seqlens) in enumerate(requests):
        fleet.send(
            Request(lane, 0.0, seqlens, lambda _, now, n=number: ends.setdefault(n, now * 1e3))
        )
    clock.run(60.0)
    return [ends[n] for n in range(len(requests))]


def test_a_lone_request_takes_two_hops_and_its_tokens() -> None:
    sent = [(Lane.QUERY, (40,))]
    assert _finished_ms(Dispatch(name="x"), sent) == pytest.approx([40 + 2e3 * HOP_S])


def test_pulled_bulk_takes_a_pull_more() -> None:
    sent = [(Lane.BULK, (40,))]
    pulled = _finished_ms(PULL, sent)
    assert pulled == pytest.approx([40 + 1e3 * (2 * HOP_S + PULL_S)])


def test_a_request_is_finished_with_its_last_chunk() -> None:
    twelve = (Lane.BULK, (10,) * 12)
    assert _finished_ms(Dispatch(name="x"), [twelve]) == pytest.approx([120 + 2e3 * HOP_S])


def test_a_window_holds_chunks_back_but_loses_none() -> None:
    sent = [(Lane.BULK, (50,) * 40)]
    windowed = Dispatch(name="x", window_tokens=400)
    assert _finished_ms(windowed, sent)[0] >= _finished_ms(Dispatch(name="y"), sent)[0] > 2000


@pytest.mark.parametrize("name", ["random", "power of two", "least loaded", "central"])
def test_every_request_is_finished_however_it_is_routed(name: str) -> None:
    clock, done = Clock(), []
    dispatch = Dispatch(name=name, online=name, bulk=name)
    fleet = Fleet(clock, dispatch, workers=3, model=TOKEN_A_MS, policy=Policy())
    for _ in range(50):
        fleet.send(Request(Lane.QUERY, 0.0, (7,), lambda *_: done.append("query")))
        fleet.send(Request(Lane.BULK, 0.0, (90,) * 9, lambda *_: done.append("bulk")))
    clock.run(1000.0)
    assert (done.count("query"), done.count("bulk")) == (50, 50)
    assert all(worker.tokens == 0 for worker in fleet.workers) or name == "central"


def test_lanes_keep_queries_fast_where_one_queue_does_not() -> None:
    lanes = offered(PULL, workers=2, utilisation=0.7, seconds=3.0)
    one_queue = Dispatch(name="x", lanes=False)
    mixed = offered(one_queue, workers=2, utilisation=0.7, seconds=3.0)
    fast, slow = (sorted(s.times_ms[Lane.QUERY]) for s in (lanes, mixed))
    assert fast[int(0.99 * len(fast))] < 10 < slow[int(0.9 * len(slow))]


def test_two_runs_of_one_seed_agree_to_the_last_digit() -> None:
    first, second = (offered(PULL, workers=2, utilisation=0.7, seconds=0.5) for _ in range(2))
    assert first == second
    assert len(first.times_ms[Lane.QUERY]) > 100
