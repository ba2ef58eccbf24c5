"""nats-server is killed, stopped, and asked to go: F1, F7 and lame duck."""

from __future__ import annotations

import asyncio
import subprocess
import time

import pytest

from hedgerow_shared import natsserver
from hedgerow_shared.bus import Bus, BusOptions
from tests.faults.rig import Load

pytestmark = pytest.mark.system


async def serves_again(rig, within_s: float) -> float:
    """Seconds until a request is answered 200; fails after `within_s`."""
    began_s = time.monotonic()
    while True:
        async with Load(rig.embed_url, callers=1, ttl_s=within_s) as probe:
            while not probe.outcomes:
                await asyncio.sleep(0.005)
        if probe.outcomes[0].status == 200:
            return time.monotonic() - began_s
        assert time.monotonic() - began_s < within_s, probe.errors()


async def test_f1_the_server_is_killed_under_64_queries_and_comes_back(rig):
    ttl_s = 3.0
    system = rig(workers=(("--fake-floor-ms", "20"),) * 2)
    async with Load(system.embed_url, callers=64, ttl_s=ttl_s) as load:
        await asyncio.sleep(1.5)
        system.nats.kill()
        killed_s = time.monotonic()
        await asyncio.sleep(0.3)
        await asyncio.to_thread(system.nats.restart)
        back_s = time.monotonic()
        await asyncio.sleep(3.0)
    assert set(load.statuses) <= {200, 503, 504}, load.errors()
    late = max(o.took_s for o in load.outcomes)
    assert late <= ttl_s + 0.1 + load.lag_s
    before = [o for o in load.since(0, killed_s) if o.status == 200]
    assert len(before) >= 64, "there was load"
    # Two seconds after the port was open everything is as before, workers included.
    after = load.since(back_s + 2.0)
    assert after and all(o.status == 200 for o in after), load.errors()
    assert system.alive(), "nobody had to be started again"
    await asyncio.sleep(0.5)
    names = [c.get("name", "") for c in system.connections()]
    assert sum(n.startswith("hedgerow-worker-") and "-bulk" not in n for n in names) == 2


@pytest.mark.slow
async def test_f7_a_server_that_stood_still_leaves_nobody_deaf(rig):
    """1.5 times the flush timeout (20 s): pings give up, reconnects find a silent port."""
    system = rig(workers=((), ()))
    system.nats.pause()
    await asyncio.sleep(30)
    system.nats.resume()
    assert await serves_again(system, 5.0) < 5.0
    assert system.alive()


async def test_f7_a_short_stop_costs_no_connection(rig):
    """Shorter than the pings' patience: late answers arrive, and everything goes on."""
    system = rig(workers=((), ()))
    before = {c["cid"] for c in system.connections()}
    async with Load(system.embed_url, callers=4) as load:
        await asyncio.sleep(0.5)
        system.nats.pause()
        await asyncio.sleep(4)
        system.nats.resume()
        await asyncio.sleep(1)
    assert set(load.statuses) == {200}, load.errors()
    assert {c["cid"] for c in system.connections()} == before


@pytest.mark.slow
async def test_a_server_that_announces_its_end_costs_no_request(rig, tmp_path):
    """Lame duck on one of two servers: its clients go to the other while it still serves."""
    ports = [natsserver.free_port() for _ in range(2)]
    routes = [natsserver.free_port() for _ in range(2)]
    servers = [
        natsserver.start(
            tmp_path / f"n{i}",
            port=ports[i],
            jetstream=False,
            extra=f"cluster {{ name: c, host: 127.0.0.1, port: {routes[i]}, "
            f'routes: ["nats://127.0.0.1:{routes[1 - i]}"] }}\n',
        )
        for i in range(2)
    ]
    both = ",".join(s.url for s in servers)
    system = rig(workers=(), gateways=())
    flags = ("--nats-url", both)
    for _ in range(2):
        system.worker("--fake-floor-ms", "5", *flags)
    system.gateway(*flags)
    system.wait()
    async with Load(system.embed_url, callers=8) as load:
        await asyncio.sleep(1)
        binary = str(natsserver.find_binary())
        signalled = [binary, "--signal", f"ldm={servers[0].process.pid}"]
        await asyncio.to_thread(subprocess.run, signalled, check=True)
        assert await asyncio.to_thread(servers[0].process.wait, 60) == 0
        gone_s = time.monotonic()
        await asyncio.sleep(1)
    assert set(load.statuses) == {200}, load.errors()
    assert load.since(gone_s)
    bus = await Bus.connect(BusOptions(servers[1].url))
    assert len(await bus.request_many("$SRV.PING.hedgerow", b"", timeout_s=1.0)) == 3
    await bus.close(patience_s=0)
    system.stop()
    servers[1].stop()
