"""The worker as its users meet it: a process on a real bus, with a device that takes time."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from hedgerow_scheduler.fake_engine import fake_vector
from hedgerow_shared import fleet, subjects
from hedgerow_shared.bus import Bus, BusOptions
from hedgerow_shared.errors import (
    DeadlineError,
    NoWorkerError,
    OverloadedError,
    RetryableError,
)
from hedgerow_shared.ragged import Lane
from hedgerow_shared.wire import ChunkReply, decode_reply, encode_cancel
from tests.nats_fixture import NatsHandle
from tests.scheduler.worker_process import (
    DIMENSION,
    MODEL,
    WorkerProcess,
    ask,
    chunk,
    clean_env,
    make_model,
    stats,
    tokens,
    watch_fleet,
)
from tests.waiting import until

pytestmark = pytest.mark.system

Start = Callable[..., WorkerProcess]


@pytest.fixture
def nats(start_nats: Callable[..., NatsHandle]) -> NatsHandle:
    """A server of this test's own: workers of two tests must not share a queue group."""
    return start_nats(jetstream=False)


@pytest.fixture
async def bus(nats: NatsHandle) -> AsyncIterator[Bus]:
    bus = await Bus.connect(BusOptions(url=nats.url))
    yield bus
    await bus.close(patience_s=0.1)


@pytest.fixture
def start(tmp_path: Path, nats: NatsHandle) -> Iterator[Start]:
    started: list[WorkerProcess] = []

    def begin(worker_id: str, *flags: str) -> WorkerProcess:
        started.append(WorkerProcess(tmp_path, nats.url, worker_id, *flags))
        return started[-1]

    yield begin
    for worker in started:
        worker.stop()


def assert_right(reply: ChunkReply, sequences: list[list[int]]) -> None:
    assert reply.error is None, reply.error
    for row, ids in zip(reply.rows, sequences, strict=True):
        assert isinstance(row, tuple), row
        assert np.array_equal(row[0], fake_vector(ids, DIMENSION))


async def test_it_joins_serves_tells_about_itself_and_leaves_with_exit_0(
    bus: Bus, start: Start
) -> None:
    events = await watch_fleet(bus)
    worker = await start("w1").joined(bus)
    sequences = [tokens(1, 5), tokens(2, 300), tokens(3, 1)]
    reply = await ask(bus, chunk("c1", sequences))
    assert_right(reply, sequences)
    assert (reply.id, reply.worker, reply.fingerprint) == ("c1", "w1", "fake")
    assert reply.compute_ms >= 2.0 and reply.queue_ms >= 0.0
    assert_right(await ask(bus, chunk("c2", sequences), worker="w1"), sequences)
    data = await stats(bus, "w1")
    assert (data["accepted"], data["chunks"], data["tokens"]) == (2, 2, 612)
    assert data["models"][MODEL]["engine"]["batches"] >= 2
    assert data["models"][MODEL]["lanes"]["query"] == {"backlog_tokens": 0, "oldest_s": 0.0}
    (info,) = await bus.request_many("$SRV.INFO.hedgerow", b"", timeout_s=2.0, max_replies=1)
    known = fleet.parse_metadata(json.loads(info.data)["metadata"])
    worker.signal(signal.SIGTERM)
    assert await worker.ended() == 0
    await bus.barrier()
    assert [(e.event, e.worker) for e in events] == [("joined", "w1"), ("left", "w1")]
    assert known == events[0]
    assert known.models[MODEL].dimension == DIMENSION
    with pytest.raises(NoWorkerError):
        await ask(bus, chunk("c3", sequences))


async def test_a_drain_message_does_what_sigterm_does(bus: Bus, start: Start) -> None:
    worker = await start("w1").joined(bus)
    bus.publish_nowait(subjects.worker_drain("w1"), b"")
    assert await worker.ended() == 0


async def test_sigterm_under_load_loses_nothing(bus: Bus, start: Start) -> None:
    first, second = start("w1"), start("w2")
    await first.joined(bus)
    await second.joined(bus)
    done: list[str] = []

    async def caller(name: int) -> None:
        for i in range(60):
            sequences = [tokens(name * 1000 + i, 1 + (7 * i + name) % 200) for _ in range(2)]
            reply = await ask(bus, chunk(f"{name}.{i}", sequences))
            assert_right(reply, sequences)
            done.append(reply.worker)

    callers = [asyncio.create_task(caller(name)) for name in range(16)]
    while len(done) < 200:
        await asyncio.sleep(0.005)
    assert set(done) == {"w1", "w2"}
    first.signal(signal.SIGTERM)
    assert await first.ended() == 0
    await asyncio.gather(*callers)
    assert len(done) == 960


async def test_kill_9_mid_batch_loses_only_what_was_on_that_worker(bus: Bus, start: Start) -> None:
    slow = ("--fake-ms", "800")
    first, second = start("w1", *slow), start("w2", *slow)
    await first.joined(bus)
    await second.joined(bus)
    sequences = [[tokens(i, 500)] for i in range(8)]
    on_first = [
        asyncio.create_task(ask(bus, chunk(f"a{i}", s), worker="w1", timeout_s=3.0))
        for i, s in enumerate(sequences[:3])
    ]
    on_second = [
        asyncio.create_task(ask(bus, chunk(f"b{i}", s), worker="w2"))
        for i, s in enumerate(sequences[3:])
    ]
    await asyncio.sleep(0.15)
    first.process.kill()
    await first.ended()
    for reply, s in zip(await asyncio.gather(*on_second), sequences[3:], strict=True):
        assert_right(reply, s)
    lost = await asyncio.gather(*on_first, return_exceptions=True)
    assert all(isinstance(error, DeadlineError) for error in lost)
    for i in range(10):
        again = await ask(bus, chunk(f"c{i}", [tokens(90 + i, 4)]))
        assert again.worker == "w2"


async def test_overload_is_answered_429_at_once_and_memory_stays_bounded(
    bus: Bus, start: Start
) -> None:
    worker = await start("w1", "--fake-ms", "100", "--backlog-tokens", "4096").joined(bus)
    await ask(bus, chunk("warm", [tokens(0, 100)]))
    before = worker.rss_bytes
    sequences = [tokens(5, 128)]
    started = time.monotonic()

    async def timed(name: str) -> tuple[ChunkReply, float]:
        reply = await ask(bus, chunk(name, sequences))
        return reply, time.monotonic() - started

    answers = await asyncio.gather(*(timed(f"q{i}") for i in range(3000)))
    served = [a for a in answers if a[0].error is None]
    refused = [(r.error, s) for r, s in answers if r.error is not None]
    assert all(isinstance(error, OverloadedError) for error, _ in refused)
    assert all(0.05 <= error.retry_after_s <= 30 for error, _ in refused)
    # 4,096 tokens may wait and a few batches ran meanwhile; all others were turned away.
    assert 30 <= len(served) <= 200
    assert np.median([s for _, s in refused]) < np.median([s for _, s in served])
    for reply, _ in served:
        assert_right(reply, sequences)
    assert worker.rss_bytes - before < 32 << 20
    assert_right(await ask(bus, chunk("after", sequences)), sequences)


async def test_ten_thousand_pieces_of_garbage_get_ten_thousand_answers(
    bus: Bus, start: Start
) -> None:
    worker = await start("w1", "--fake-ms", "1", "--fake-floor-ms", "0").joined(bus)
    rng = np.random.default_rng(11)
    good = chunk("good", [tokens(1, 9), tokens(2, 30)])
    neighbours = [tokens(3, 12)]

    def garbage(i: int) -> bytes:
        data = bytearray(good)
        if i % 4 == 0:
            return rng.bytes(int(rng.integers(0, 200)))
        if i % 4 == 1:
            return bytes(data[: int(rng.integers(0, len(data)))])
        for at in rng.integers(0, len(data), i % 5 + 1):
            data[at] = int(rng.integers(0, 256))
        return bytes(data)

    codes: dict[str, int] = {}
    for _ in range(20):
        asked = [ask(bus, garbage(i)) for i in range(500)]
        asked.append(ask(bus, chunk("neighbour", neighbours)))
        *replies, neighbour = await asyncio.gather(*asked)
        assert_right(neighbour, neighbours)
        for reply in replies:
            code = reply.error.code if reply.error else "ok"
            codes[code] = codes.get(code, 0) + 1
    assert sum(codes.values()) == 10_000
    assert codes["invalid_chunk"] > 5000, codes
    assert set(codes) <= {"ok", "invalid_chunk", "model_not_found", "no_worker", "too_large"} | {
        "deadline_exceeded",
        "overloaded",
    }, codes
    assert worker.process.poll() is None


async def test_a_poisonous_sequence_fails_alone_and_its_batch_mates_are_right(
    bus: Bus, start: Start
) -> None:
    await start("w1", "--fake-raise-id", "66", "--fake-ms", "50").joined(bus)
    mates = [[tokens(i, 20)] for i in range(12)]
    mates[5] = [tokens(50, 20), [7, 66, 8], tokens(51, 20)]
    replies = await asyncio.gather(*(ask(bus, chunk(f"c{i}", s)) for i, s in enumerate(mates)))
    for i, (reply, sequences) in enumerate(zip(replies, mates, strict=True)):
        if i != 5:
            assert_right(reply, sequences)
    bad = replies[5]
    assert bad.error is None
    assert [getattr(row, "code", "ok") for row in bad.rows] == ["ok", "row_failed", "ok"]
    assert isinstance(bad.rows[2], tuple)
    assert np.array_equal(bad.rows[2][0], fake_vector(mates[5][2], DIMENSION))


async def test_a_step_that_never_ends_ends_the_worker_and_its_callers_hear_of_it(
    bus: Bus, start: Start
) -> None:
    worker = await start("w1", "--fake-hang-id", "77", "--hung-s", "1").joined(bus)
    started = time.monotonic()
    replies = await asyncio.gather(
        ask(bus, chunk("hang", [[77]])), ask(bus, chunk("behind", [tokens(1, 400)]))
    )
    assert time.monotonic() - started < 5.0
    for reply in replies:
        assert isinstance(reply.error, RetryableError) and reply.error.code == "worker_lost"
    assert await worker.ended() == 71


async def test_a_worker_that_was_stopped_computes_nothing_whose_time_is_over(
    bus: Bus, start: Start
) -> None:
    worker = await start("w1", "--fake-ms", "16").joined(bus)
    await ask(bus, chunk("warm", [tokens(0, 8)]))
    worker.signal(signal.SIGSTOP)
    late: list[ChunkReply] = []
    inbox = "_INBOX.late"
    await bus.subscribe(f"{inbox}.*", lambda m: late.append(decode_reply(m.data)))
    for i in range(20):
        ttl_ms = 1500.0 if i % 2 else 60_000.0
        bus.publish_nowait(
            subjects.chunk(MODEL),
            chunk(str(i), [tokens(i, 8)], ttl_ms=ttl_ms),
            reply=f"{inbox}.{i}",
        )
    await bus.barrier()
    await asyncio.sleep(2.5)
    worker.signal(signal.SIGCONT)
    end_s = time.monotonic() + 10
    while len(late) < 20 and time.monotonic() < end_s:
        await asyncio.sleep(0.01)
    verdicts = {r.id: "ok" if r.error is None else r.error.code for r in late}
    assert verdicts == {str(i): "deadline_exceeded" if i % 2 else "ok" for i in range(20)}
    await asyncio.sleep(0.5)
    assert (await ask(bus, chunk("new", [tokens(1, 8)], ttl_ms=1000.0))).error is None


async def test_queries_overtake_a_queue_of_bulk(bus: Bus, start: Start) -> None:
    await start("w1", "--fake-ms", "400", "--bulk-pass-busy-tokens", "512").joined(bus)
    bulk = [
        asyncio.create_task(ask(bus, chunk(f"b{i}", [tokens(i, 512)], lane=Lane.BULK)))
        for i in range(10)
    ]
    await asyncio.sleep(0.02)
    started = time.monotonic()
    assert (await ask(bus, chunk("q", [tokens(99, 8)]))).error is None
    waited_s = time.monotonic() - started
    # A pass takes 50 ms: the query may find one running, and none that is only queued.
    assert waited_s < 0.15
    assert not all(task.done() for task in bulk)
    for reply in await asyncio.gather(*bulk):
        assert reply.error is None


async def test_a_cancelled_chunk_does_not_run(bus: Bus, start: Start) -> None:
    await start("w1", "--fake-ms", "800").joined(bus)
    running = [asyncio.create_task(ask(bus, chunk(f"r{i}", [tokens(i, 512)]))) for i in range(2)]
    waiting = asyncio.create_task(ask(bus, chunk("waits", [tokens(9, 512)])))
    await asyncio.sleep(0.05)
    bus.publish_nowait(subjects.worker_cancel("w1"), encode_cancel(["waits", "unknown"]))
    reply = await waiting
    assert reply.error is not None and reply.error.code == "cancelled"
    assert not any(task.done() for task in running)
    await asyncio.gather(*running)
    assert (await stats(bus, "w1"))["tokens"] == 1024


async def test_it_serves_again_after_the_bus_was_killed_and_came_back(
    nats: NatsHandle, start: Start
) -> None:
    bus = await Bus.connect(BusOptions(url=nats.url))
    worker = await start("w1").joined(bus)
    nats.kill()
    await asyncio.sleep(0.3)
    nats.restart()
    end_s = time.monotonic() + 10
    reply = None
    while reply is None and time.monotonic() < end_s:
        with contextlib.suppress(RetryableError):
            reply = await ask(bus, chunk("c", [tokens(1, 8)]), timeout_s=1.0)
        await asyncio.sleep(0.05)
    assert reply is not None and reply.error is None
    assert worker.process.poll() is None
    await bus.close(patience_s=0.1)


async def test_it_ends_in_good_order_while_the_bus_is_away(nats: NatsHandle, start: Start) -> None:
    bus = await Bus.connect(BusOptions(url=nats.url))
    worker = await start("w1").joined(bus)
    await bus.close(patience_s=0.1)
    nats.kill()
    await until(lambda: "bus: lost" in worker.log.read_text())
    worker.signal(signal.SIGTERM)
    assert await worker.ended() == 0, worker.log.read_text()


async def test_a_second_signal_ends_it_at_once(bus: Bus, start: Start) -> None:
    worker = await start("w1", "--fake-ms", "8000").joined(bus)
    asked = asyncio.create_task(ask(bus, chunk("long", [tokens(1, 512)] * 8), timeout_s=2.0))
    await asyncio.sleep(0.1)
    worker.signal(signal.SIGTERM)
    await asyncio.sleep(0.3)
    assert worker.process.poll() is None, "it finishes what it accepted"
    worker.signal(signal.SIGTERM)
    assert await worker.ended(2.0) == 128 + signal.SIGTERM
    with pytest.raises(DeadlineError):
        await asked


async def test_a_drain_that_takes_too_long_answers_what_is_left(bus: Bus, start: Start) -> None:
    worker = await start("w1", "--fake-ms", "8000", "--drain-s", "0.5").joined(bus)
    asked = asyncio.create_task(ask(bus, chunk("long", [tokens(1, 512)] * 8)))
    await asyncio.sleep(0.1)
    worker.signal(signal.SIGTERM)
    reply = await asked
    assert reply.error is not None and reply.error.code == "worker_lost"
    assert await worker.ended() == 1


@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG")
def test_it_does_not_outlive_the_process_that_started_it(tmp_path: Path, nats: NatsHandle) -> None:
    code = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-m', 'hedgerow_scheduler', *sys.argv[1:]])\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    model = make_model(tmp_path / "model")
    flags = ["--nats-url", nats.url, "--device", "fake", "--model", f"{MODEL}={model}"]
    parent = subprocess.Popen(
        [sys.executable, "-c", code, *flags, "--die-with-parent"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=clean_env(),
    )
    assert parent.stdout is not None and parent.stderr is not None
    child = int(parent.stdout.readline())
    try:
        while "ready" not in parent.stderr.readline():
            assert parent.poll() is None
    finally:
        parent.kill()
        parent.wait()
    end_s = time.monotonic() + 10
    while time.monotonic() < end_s and alive(child):
        time.sleep(0.05)
    parent.stdout.close()
    parent.stderr.close()
    assert not alive(child)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1][0] != "Z"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([], "--model ALIAS="),
        (["--model", "m=./nowhere/at/all"], "no such folder"),
        (["--model", "a.b={model}", "--model", "a/b={model}"], "rename one"),
        (["--model", "m={model}", "--max-seq-len", "4000"], "--max-seq-len 4000"),
        (["--model", "m={model}", "--max-seq-len", "x=5"], "no --model has the alias"),
        (["--model", "m={model}", "--budget-tokens", "0"], "--budget-tokens"),
        (["--model", "m={model}", "--depth", "two"], "--depth"),
        (["--model", "m={model}", "--nats-url", "nats://127.0.0.1:1"], "127.0.0.1:1"),
    ],
    ids=["no model", "no folder", "same token", "too long", "no alias", "zero", "word", "no bus"],
)
def test_what_is_wrong_at_start_is_one_line_and_exit_2(
    tmp_path: Path, flags: list[str], words: str
) -> None:
    model = make_model(tmp_path / "model")
    flags = [f.format(model=model) for f in flags]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "hedgerow_scheduler",
            "--device",
            "fake",
            "--nats-connect-s=1",
            *flags,
        ],
        capture_output=True,
        text=True,
        timeout=60,
        env=clean_env(),
    )
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 2, done.stderr
    assert last.startswith("hedgerow-worker: ") and words in last
    assert "Traceback" not in done.stderr
