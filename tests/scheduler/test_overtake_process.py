"""Queries beside bulk in a real worker: on the real engine they overtake a pass that runs."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from hedgerow_shared import subjects
from hedgerow_shared.bus import Bus, BusOptions
from hedgerow_shared.ragged import Lane, RaggedBatch
from hedgerow_shared.wire import Chunk, ChunkReply, decode_reply, encode_chunk
from tests.nats_fixture import NatsHandle
from tests.scheduler.worker_process import WorkerProcess, ask, chunk, clean_env, stats, tokens

pytestmark = pytest.mark.system

ROUNDS = 5
QUIET_S = 1.0
TRIES = 20


@pytest.fixture
def nats(start_nats: Callable[..., NatsHandle]) -> NatsHandle:
    return start_nats(jetstream=False)


@pytest.fixture
def real(nats: NatsHandle, minilm_folder: Path, tmp_path: Path) -> Iterator[subprocess.Popen]:
    """A worker `w1` with MiniLM on the native executor, whose bulk passes are whole chunks."""
    pytest.importorskip("llvmlite")
    argv = [sys.executable, "-m", "hedgerow_scheduler", "--nats-url", nats.url, "--bulk", "off"]
    argv += ["--model", f"m={minilm_folder}", "--max-seq-len", "512", "--worker-id", "w1"]
    argv += ["--device", "cpu", "--cpu-executor", "native", "--die-with-parent"]
    argv += ["--bulk-pass-tokens", "16384", "--bulk-pass-busy-tokens", "16384"]
    with (tmp_path / "w1.log").open("wb") as log:
        process = subprocess.Popen(argv, stdout=log, stderr=log, env=clean_env())
    yield process
    process.terminate()
    assert process.wait(30) == 0, (tmp_path / "w1.log").read_text()


async def there(bus: Bus, process: subprocess.Popen, log: Path) -> None:
    while not await bus.request_many("$SRV.PING.hedgerow.w1", b"", timeout_s=0.5, max_replies=1):
        if process.poll() == 2 and "native" in log.read_text():
            pytest.skip(f"no native executor here: {log.read_text().strip().splitlines()[-1]}")
        assert process.poll() is None, log.read_text()
        await asyncio.sleep(0.05)


async def send(bus: Bus, name: str, sequences: list[list[int]], lane: Lane) -> ChunkReply:
    data = encode_chunk(Chunk(name, "m", lane, 60_000, RaggedBatch.of(sequences)))
    reply = decode_reply((await bus.request(subjects.chunk("m"), data, timeout_s=60)).data)
    assert reply.error is None, reply.error
    return reply


async def batches(bus: Bus) -> int:
    return (await stats(bus, "w1")).get("batches", 0)


def bytes_of(reply: ChunkReply) -> list[bytes]:
    return [array.tobytes() for row in reply.rows for array in row]


@pytest.mark.parametrize("count", [1, 8], ids=["a pass of 512", "a pass of 4096"])
async def test_a_query_sent_into_a_running_bulk_pass_is_answered_before_it(
    nats, real, tmp_path, count
):
    bus = await Bus.connect(BusOptions(nats.url))
    await there(bus, real, tmp_path / "w1.log")
    rng = np.random.default_rng(4)
    bulk = [rng.integers(1000, 20_000, 512).tolist() for _ in range(count)]
    query = [rng.integers(1000, 20_000, 16).tolist()]
    expected = bytes_of(await send(bus, "query", query, Lane.QUERY))
    began_s = time.monotonic()
    lone = await send(bus, "lone", bulk, Lane.BULK)
    lone_s = time.monotonic() - began_s
    before = await batches(bus)
    first = 0
    for _ in range(ROUNDS):
        running = asyncio.create_task(send(bus, "bulk", bulk, Lane.BULK))
        await asyncio.sleep(0.2 * lone_s)
        passing = await send(bus, "passing", query, Lane.QUERY)
        first += not running.done()
        assert bytes_of(passing) == expected
        assert bytes_of(await running) == bytes_of(lone)
    # Of bulk and query one batch each: the query did not slip in between two passes.
    assert await batches(bus) - before == 2 * ROUNDS
    assert first >= ROUNDS - 1, f"only {first} of {ROUNDS} queries came back first"
    await bus.close(patience_s=0)


async def test_bulk_passes_are_small_while_queries_come_and_large_again_after(nats, tmp_path):
    bus = await Bus.connect(BusOptions(nats.url))
    flags = ("--bulk", "off", "--fill", "off", "--fake-ms", "8", "--bulk-quiet-s", f"{QUIET_S}")
    sizes = ("--bulk-pass-tokens", "512", "--bulk-pass-busy-tokens", "128")
    worker = WorkerProcess(tmp_path, nats.url, "w1", *flags, *sizes)
    await worker.joined(bus)
    sequences = [tokens(i, 64) for i in range(32)]

    async def batches_of_bulk() -> int:
        before = await batches(bus)
        assert (await ask(bus, chunk("bulk", sequences, lane=Lane.BULK))).error is None
        return await batches(bus) - before

    async def batches_of_bulk_beside_a_query() -> int:
        # A machine busy with others may take so long that the worker rightly thinks it is quiet
        # again: only what was over before that says how large passes are beside a query.
        for _ in range(TRIES):
            began_s = time.monotonic()
            assert (await ask(bus, chunk("query", [tokens(1, 8)]))).error is None
            passes = await batches_of_bulk()
            if time.monotonic() - began_s < QUIET_S:
                return passes
        pytest.fail(f"in {TRIES} tries a query and 2048 tokens of bulk took more than {QUIET_S} s")

    assert await batches_of_bulk() == 2048 // 512
    assert await batches_of_bulk_beside_a_query() == 2048 // 128
    await asyncio.sleep(QUIET_S + 0.1)
    assert await batches_of_bulk() == 2048 // 512
    await bus.close(patience_s=0)
    worker.stop()
