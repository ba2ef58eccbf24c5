"""F11: three times more than a worker can do, for half a minute; and a reader who never reads."""

from __future__ import annotations

import asyncio
import itertools
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from hedgerow_shared import subjects
from hedgerow_shared.bus import Bus, BusOptions
from hedgerow_shared.ragged import RaggedBatch
from hedgerow_shared.wire import Chunk, encode_chunk
from tests.faults.rig import Load, Outcome, Rig, p99, running_rig
from tests.gateway.conftest import train_wordpiece, write_model
from tests.scheduler.worker_process import stats

pytestmark = [pytest.mark.system, pytest.mark.slow]

TEXTS, TOKENS = 8, 64
REQUEST = TEXTS * TOKENS
"""One chunk of 512 tokens, 50 ms of the device: 20 a second is all there is."""
SERVICE_S = 0.05
DEVICE = ("--fake-ms", "400", "--fake-floor-ms", "5", "--worker-id", "w1")
_numbers = itertools.count()


def inputs() -> list[list[int]]:
    """Token ids, so that the device is what there is too little of; never the same twice, since
    equal inputs would be computed once."""
    return [
        [next(_numbers) % 700 + 10, next(_numbers) // 700 + 10, *range(10, 72)] for _ in range(8)
    ]


def rss_mib(process) -> float:
    line = next(
        line
        for line in Path(f"/proc/{process.pid}/status").read_text().splitlines()
        if line.startswith("VmRSS")
    )
    return int(line.split()[1]) / 1024


class Paced(Load):
    """Requests at a fixed rate, whatever becomes of them."""

    rate: float = 60.0

    async def _call(self, caller: int) -> None:
        tasks: set[asyncio.Task[None]] = set()
        due_s = time.monotonic()
        while not self._stop.is_set():
            task = asyncio.create_task(self._ask())
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            due_s += 1 / self.rate
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
        if tasks:
            await asyncio.wait(tasks)

    async def _ask(self) -> None:
        self.outcomes.append(await self._one({"input": inputs()}))


class Closed(Load):
    """One request after the other, of the same size."""

    async def _call(self, caller: int) -> None:
        while not self._stop.is_set():
            self.outcomes.append(await self._one({"input": inputs()}))


@asynccontextmanager
async def counted(bus: Bus) -> AsyncIterator[dict[str, float]]:
    """Tokens the worker computed inside the block."""
    found: dict[str, float] = {}
    before = (await stats(bus, "w1")).get("tokens", 0)
    yield found
    found["tokens"] = (await stats(bus, "w1"))["tokens"] - before


def fill_bulk(system: Rig, job: str, count: int) -> None:
    """Durable work for longer than the test takes."""
    rows = [{"id": f"r{i}", "text": f"{i} " + "hedge " * 100} for i in range(count)]
    end_s = time.monotonic() + 20
    while time.monotonic() < end_s:
        answer = httpx.post(f"{system.url}/v1/bulk", json={"job": job, "rows": rows}, timeout=60)
        if answer.status_code == 200:
            return
        time.sleep(0.2)
    raise AssertionError(answer.text)


def accepted(outcomes: list[Outcome]) -> list[Outcome]:
    return [o for o in outcomes if o.status == 200]


async def test_f11_three_times_too_much_for_half_a_minute(rig):
    system = rig(
        workers=((*DEVICE, "--backlog-tokens", str(4 * REQUEST)),),
        gateways=(("--token-ids", "native"),),
    )
    bus = await Bus.connect(BusOptions(system.nats.url))
    async with Closed(system.embed_url, callers=4) as normal:
        await asyncio.sleep(6)
    assert set(normal.statuses) == {200}, normal.errors()
    usual_s = p99(normal.outcomes[4:])
    await asyncio.to_thread(fill_bulk, system, "job", 2000)
    parts = [system.workers[0], system.gateways[0]]
    before = [rss_mib(part) for part in parts]
    async with Paced(system.embed_url, callers=1) as over:
        await asyncio.sleep(2)
        async with counted(bus) as during:
            began_s = time.monotonic()
            await asyncio.sleep(28)
            ended_s = time.monotonic()
    grown = [rss_mib(part) - b for part, b in zip(parts, before, strict=True)]
    assert max(grown) < 64, grown
    assert set(over.statuses) == {200, 429}, over.errors()
    sent = len(over.since(began_s, ended_s)) * REQUEST / (ended_s - began_s)
    assert sent > 2.5 * REQUEST / SERVICE_S, "this machine could not send three times too much"
    refused = [o for o in over.outcomes if o.status == 429]
    assert all(float(o.retry_after) >= 1 for o in refused)
    good = accepted(over.since(began_s, ended_s))
    assert p99(good) <= 2 * usual_s + over.lag_s
    # Bulk had its floor all the while: what the worker did beside the queries it answered.
    bulk = 1 - len(good) * REQUEST / during["tokens"]
    assert bulk >= 0.19, f"only {bulk:.3f} of the tokens"
    async with Closed(system.embed_url, callers=1) as after:
        await asyncio.sleep(1.5)
    assert set(after.statuses) == {200}, after.errors()
    assert min(o.sent_s + o.took_s for o in after.outcomes) - ended_s < 1.5
    assert all(o.took_s < usual_s + after.lag_s for o in after.outcomes[1:])
    await bus.close(patience_s=0)


async def test_f11_a_reader_that_never_reads_costs_the_others_nothing(tmp_path):
    folder = write_model(tmp_path / "wide", train_wordpiece(), hidden_size=1024)
    with running_rig(tmp_path / "rig", f"toy={folder}") as system:
        system.worker("--fake-ms", "1", "--fake-floor-ms", "0", "--worker-id", "w1")
        system.gateway()
        await asyncio.to_thread(system.wait)
        bus = await Bus.connect(BusOptions(system.nats.url))
        before = rss_mib(system.workers[0])
        chunk = encode_chunk(Chunk("c", "toy", 0, 60_000.0, RaggedBatch.of([[5, 6]] * 8)))
        with socket.socket() as deaf:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            deaf.connect(("127.0.0.1", system.nats.port))
            deaf.settimeout(10)
            deaf.sendall(b'CONNECT {"verbose":false,"name":"deaf"}\r\nSUB _INBOX.deaf 1\r\n')
            head = f"PUB {subjects.chunk('toy')} _INBOX.deaf {len(chunk)}\r\n".encode()
            async with Load(system.embed_url, callers=4) as load:
                await asyncio.to_thread(send_until_cut, deaf, head + chunk + b"\r\n")
                await asyncio.sleep(1)
            assert set(load.statuses) == {200}, load.errors()
            assert p99(load.outcomes) < 1.0 + load.lag_s
        assert "deaf" not in {c.get("name") for c in system.connections()}
        assert rss_mib(system.workers[0]) - before < 64
        assert (await stats(bus, "w1"))["open_chunks"] == 0
        assert system.alive()
        await bus.close(patience_s=0)


def send_until_cut(deaf: socket.socket, message: bytes) -> None:
    """Ask for 33 KB again and again and read none of it; returns once the server hangs up."""
    end_s = time.monotonic() + 30
    try:
        while time.monotonic() < end_s:
            deaf.sendall(message * 20)
            time.sleep(0.02)
    except OSError:
        return
    raise AssertionError("the server never cut off a reader that does not read")
