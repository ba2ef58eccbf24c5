"""Processes that are gateway and worker at once, beside ones that are not."""

from __future__ import annotations

import asyncio
import base64
import json
import signal
import time

import httpx
import pytest

from hedgerow_shared import subjects
from hedgerow_shared.bus import Bus, BusOptions
from hedgerow_shared.natsserver import free_port
from tests.faults.conftest import rig, toy  # noqa: F401 - fixtures
from tests.faults.rig import Load
from tests.waiting import until

pytestmark = pytest.mark.system

SLOW = ("--fake-floor-ms", "30")


def vector(url: str, text: str = "hello") -> bytes:
    body = {"input": text, "encoding_format": "base64"}
    reply = httpx.post(f"{url}/v1/embeddings", json=body, timeout=20)
    assert reply.status_code == 200, reply.text
    return base64.b64decode(reply.json()["data"][0]["embedding"])


def test_a_query_that_meets_its_own_worker_needs_no_bus(rig):  # noqa: F811
    system = rig(workers=(), gateways=())
    system.together()
    system.wait()
    before = vector(system.url, "one")
    system.nats.pause()
    try:
        assert vector(system.url, "one") == before
    finally:
        system.nats.resume()


REQUESTS = {
    "one": ("/v1/embeddings", {"input": "hello"}),
    "short": ("/v1/embeddings", {"input": "hello", "dimensions": 4}),
    "many": ("/v1/embeddings", {"input": [f"text {i} " * (i % 7 + 1) for i in range(100)]}),
    "rerank": ("/v1/rerank", {"query": "a text", "documents": [f"text {i}" for i in range(9)]}),
}


def answers(url: str) -> dict[str, object]:
    """What is the same for the same request; ids of requests are not."""
    found: dict[str, object] = {}
    for name, (path, body) in REQUESTS.items():
        reply = httpx.post(f"{url}{path}", json=body, timeout=20)
        assert reply.status_code == 200, reply.text
        said = reply.json()
        found[name] = said.get("data") or said["results"], said["hedgerow"]
    return found


def test_both_ways_give_the_same_answers(rig):  # noqa: F811
    system = rig(workers=((),), gateways=())
    system.gateway()
    apart = system.url
    system.wait()
    far = answers(apart)
    system.together()
    system.wait()
    for _ in range(3):
        assert answers(system.url) == far
        assert answers(apart) == far, "both workers and both gateways are everybody's"


async def test_what_finds_its_worker_busy_goes_to_others(rig):  # noqa: F811
    system = rig(workers=(), gateways=())
    system.together(worker=SLOW)
    alone = system.url
    system.worker(*SLOW)
    system.wait()
    async with Load(f"{alone}/v1/embeddings", callers=8) as load:
        await asyncio.sleep(2.0)
    assert set(load.statuses) == {200}, load.errors()
    bus = await Bus.connect(BusOptions(system.nats.url))
    said = await bus.request_many("$SRV.STATS.hedgerow", b"", timeout_s=1.0)
    await bus.close(patience_s=0)
    first = [json.loads(reply.data)["endpoints"][0] for reply in said]
    served = [e["num_requests"] for e in first if e["name"] == "chunk-toy"]
    assert len(served) == 2 and min(served) > 10, served


@pytest.mark.parametrize(
    "manner",
    [
        pytest.param({}, id="busy keep-alive connections"),
        pytest.param({"keep_alive": False}, id="a connection each"),
    ],
)
async def test_each_in_turn_is_told_to_go_and_no_request_fails(rig, manner):  # noqa: F811
    share = ("--reuse-port", "--port", str(free_port()))
    system = rig(workers=(), gateways=())
    leaving = [system.together(*share, worker=SLOW) for _ in range(2)]
    system.wait()
    async with Load(system.embed_url, callers=8, **manner) as load:
        await asyncio.sleep(0.5)
        for process in leaving:
            system.together(*share, worker=SLOW)
            await until(lambda: served_by(system) == 3, 30)
            process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(process.wait, 40) == 0
            await until(lambda: served_by(system) == 2, 30)
            await asyncio.sleep(0.3)
    assert set(load.statuses) == {200}, load.errors()
    assert len(load.outcomes) > 50


def served_by(system) -> int:
    names = [c.get("name", "") for c in system.connections()]
    return sum(n.startswith("hedgerow-worker-") and not n.endswith("-bulk") for n in names)


async def test_a_killed_one_costs_only_what_was_connected_to_it(rig):  # noqa: F811
    system = rig(workers=(), gateways=())
    victim = system.together(worker=SLOW)
    system.together(worker=SLOW)
    system.wait()
    async with Load(system.embed_url, callers=8, ttl_s=20) as load:
        await asyncio.sleep(1.0)
        victim.kill()
        await asyncio.sleep(2.0)
    assert set(load.statuses) == {200}, load.errors()
    assert len(load.outcomes) > 50


def test_an_engine_that_dies_takes_the_whole_process_along(rig):  # noqa: F811
    system = rig(workers=(), gateways=())
    process = system.together(
        "--token-ids", "native", worker=("--hung-s", "1", "--fake-hang-id", "17")
    )
    system.wait()
    assert vector(system.url)
    began_s = time.monotonic()
    body = {"input": [[17]]}
    reply = httpx.post(f"{system.url}/v1/embeddings", json=body, timeout=30)
    assert reply.status_code == 503, reply.text
    assert process.wait(20) == 71, "its supervisor starts it again"
    assert time.monotonic() - began_s < 15


def test_a_worker_that_may_not_join_ends_its_gateway_with_one_line(rig):  # noqa: F811
    system = rig(workers=((),), gateways=())
    system.gateway()
    system.wait()
    process = system.together(worker=("--fake-skew", "0.5"))
    assert process.wait(30) == 2
    last = system.logs().split("--- together")[1].strip().splitlines()
    said = [line for line in last if line.startswith("hedgerow-together: ")]
    assert len(said) == 1 and "--allow-mixed-fleet" in said[0]


async def test_asked_over_the_bus_to_drain_both_go(rig):  # noqa: F811
    system = rig(workers=(), gateways=())
    process = system.together(worker=("--worker-id", "w7"))
    system.wait()
    bus = await Bus.connect(BusOptions(system.nats.url))
    bus.publish_nowait(subjects.worker_drain("w7"), b"")
    assert await asyncio.to_thread(process.wait, 20) == 0
    await bus.close(patience_s=0)
