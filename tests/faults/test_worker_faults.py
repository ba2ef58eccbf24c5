"""Workers are killed, stopped, replaced while callers wait: F3, F5, rolling SIGTERM, clocks."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hedgerow_shared import subjects
from hedgerow_shared.bus import Bus, BusOptions
from hedgerow_shared.natsserver import free_port
from hedgerow_shared.ragged import RaggedBatch
from hedgerow_shared.wire import Chunk, decode_reply, encode_chunk
from tests.faults.rig import Load, Rig, go_on, p99, stop_process
from tests.waiting import until

pytestmark = pytest.mark.system

SLOW_BATCH = ("--fake-floor-ms", "30")


async def known(system: Rig, count: int, timeout_s: float = 15.0) -> None:
    """Wait until the gateway counts so many workers."""
    end_s = time.monotonic() + timeout_s
    while await asyncio.to_thread(system.metric, "hedgerow_gateway_workers") != count:
        assert time.monotonic() < end_s, f"not {count} workers: {system.logs()}"
        await asyncio.sleep(0.1)


async def test_f3_one_of_two_workers_is_killed_mid_batch(rig):
    system = rig(workers=(SLOW_BATCH, SLOW_BATCH))
    await known(system, 2)
    async with Load(system.embed_url, callers=16, ttl_s=1.0) as load:
        await asyncio.sleep(2.0)
        usual_s = p99(load.outcomes)
        assert load.ttl_s >= 2 * usual_s
        system.workers[0].kill()
        await known(system, 1)
        await asyncio.sleep(0.5)
    assert set(load.statuses) == {200}, load.errors()
    assert len(load.outcomes) > 100
    # Only what was on it had to be sent again: at most one chunk of each caller (and what a busy
    # machine kept waiting for a third of its time).
    retries = await asyncio.to_thread(system.metric, "hedgerow_gateway_chunk_retries")
    assert 1 <= retries <= max(16, sum(o.took_s > load.ttl_s / 3 for o in load.outcomes))


async def test_the_only_worker_is_killed_and_its_work_goes_to_the_one_that_comes(rig):
    """A chunk in flight on it is sent to the new one as soon as that has joined."""
    system = rig(workers=(SLOW_BATCH,), gateways=(("--attempt-unknown-s", "1"),))
    await known(system, 1)
    async with Load(system.embed_url, callers=4, ttl_s=30.0) as load:
        await until(lambda: len(load.outcomes) > 40, 20)
        system.workers[0].kill()
        await asyncio.sleep(0.2)
        system.worker(*SLOW_BATCH)
        await known(system, 1, 30)
        joined_s = time.monotonic()
        await until(lambda: len(load.since(joined_s)) > 20, 20)
    # Those that found nobody were told at once; those that had begun were finished by the new one.
    assert set(load.statuses) <= {200, 503}, load.errors()
    assert all(o.took_s < 1 for o in load.outcomes if o.status == 503), "no worker: said at once"
    waited = [o for o in load.outcomes if o.status == 200 and o.took_s > 1]
    assert waited, "something was in flight when the worker died"
    assert max(o.sent_s + o.took_s for o in waited) - joined_s < 5


@pytest.mark.slow
async def test_f5_a_worker_stands_still_for_20_seconds(rig):
    ttl_s = 10.0
    system = rig(workers=(SLOW_BATCH, SLOW_BATCH))
    await known(system, 2)
    async with Load(system.embed_url, callers=8, ttl_s=ttl_s) as load:
        await asyncio.sleep(2.0)
        stop_process(system.workers[0])
        stopped_s = time.monotonic()
        # Three of the server's pings, 5 s each: then it is out of the queue group.
        await until(lambda: worker_connections(system) == 1, 3 * 5.0 + 1.0)
        excluded_s = time.monotonic()
        await asyncio.sleep(max(0.0, stopped_s + 20 - time.monotonic()))
        go_on(system.workers[0])
        again_s = time.monotonic()
        await known(system, 2)
        await asyncio.sleep(2.0)
    good = load.statuses[200] / len(load.outcomes)
    assert good >= 0.99, load.errors()
    assert set(load.statuses) <= {200, 503, 504}, load.errors()
    assert max(o.took_s for o in load.outcomes) <= ttl_s + 0.1 + load.lag_s
    # Once it is out, nothing is sent to it: no request waits for a second attempt any more.
    calm = load.since(excluded_s + 0.5, again_s)
    assert calm and max(o.took_s for o in calm) < 1.0
    assert worker_connections(system) == 2, "it came back by itself"
    assert system.alive()


def worker_connections(system: Rig) -> int:
    names = [c.get("name", "") for c in system.connections()]
    return sum(n.startswith("hedgerow-worker-") and not n.endswith("-bulk") for n in names)


async def test_f5_what_waited_in_a_stopped_worker_is_not_computed_after_its_time(rig):
    system = rig(workers=(("--worker-id", "w1", "--fake-floor-ms", "1"),))
    bus = await Bus.connect(BusOptions(system.nats.url))
    heard: list[float] = []
    inbox = bus.new_inbox()
    await bus.subscribe(inbox, lambda m: heard.append(time.monotonic()) or rows.append(m.data))
    rows: list[bytes] = []
    await bus.barrier()
    stop_process(system.workers[0])
    for i in range(50):
        chunk = Chunk(f"c{i}", "toy", 0, 1000.0, RaggedBatch.of([[5, 6, 7]]))
        await bus.publish(subjects.chunk("toy"), encode_chunk(chunk), reply=inbox)
    await bus.barrier()
    await asyncio.sleep(2.5)
    go_on(system.workers[0])
    await until(lambda: len(rows) == 50)
    answers = [decode_reply(data) for data in rows]
    assert {a.error.code if a.error else "rows" for a in answers} == {"deadline_exceeded"}
    await bus.close(patience_s=0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "manner",
    [
        pytest.param({}, id="busy keep-alive connections"),
        pytest.param({"every_s": 0.05}, id="connections that rest in between"),
        pytest.param({"keep_alive": False}, id="a connection each"),
    ],
)
async def test_every_worker_and_gateway_in_turn_is_told_to_go_and_no_request_fails(rig, manner):
    port = str(free_port())
    share = ("--reuse-port", "--port", port)
    system = rig(workers=(SLOW_BATCH, SLOW_BATCH), gateways=(share, share))
    await listening(system, 2)
    async with Load(system.embed_url, callers=12, **manner) as load:
        await asyncio.sleep(1.0)
        for worker in list(system.workers):
            system.worker(*SLOW_BATCH)
            await until(lambda: worker_connections(system) == 3, 30)
            await replaced(worker)
        for gateway in list(system.gateways):
            system.gateway(*share)
            await listening(system, len([g for g in system.gateways if g.poll() is None]))
            await asyncio.sleep(0.5)
            await replaced(gateway)
        await asyncio.sleep(0.5)
    assert set(load.statuses) == {200}, load.errors()
    assert len(load.outcomes) > 200


async def replaced(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    assert await asyncio.to_thread(process.wait, 40) == 0
    await asyncio.sleep(0.5)


async def listening(system: Rig, count: int) -> None:
    """Wait until so many sockets listen on the shared port."""

    def sockets() -> int:
        wanted = f":{system.port:04X}"
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        return sum(row[1].endswith(wanted) and row[3] == "0A" for row in rows)

    await until(lambda: sockets() == count, 30)


async def test_a_clock_that_is_an_hour_ahead_changes_nothing(rig, tmp_path):
    """Times travel as what is left, and are counted by a clock that nobody sets."""
    folder = tmp_path / "ahead"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(
        "import time\n_time, _ns = time.time, time.time_ns\n"
        "time.time = lambda: _time() + 3600\ntime.time_ns = lambda: _ns() + 3600 * 10**9\n"
    )
    probe = [sys.executable, "-c", "import time; print(time.time())"]
    ahead = {**os.environ, "PYTHONPATH": str(folder)}
    shifted = float(subprocess.run(probe, env=ahead, capture_output=True, text=True).stdout)
    assert shifted - time.time() > 3500
    system = rig(workers=(), gateways=())
    usual = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = str(folder)
    try:
        system.worker()
    finally:
        os.environ.pop("PYTHONPATH")
        if usual is not None:
            os.environ["PYTHONPATH"] = usual
    system.gateway()
    system.wait()
    async with Load(system.embed_url, callers=2, ttl_s=2.0) as load:
        await asyncio.sleep(1.0)
    assert set(load.statuses) == {200}, load.errors()
