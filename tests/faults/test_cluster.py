"""Three servers from infra/nats/cluster.conf, with its TLS and its rules; one of them dies."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time

import httpx
import pytest

from hedgerow_shared.bus import Bus
from hedgerow_shared.natsserver import free_port
from tests.faults.rig import Load
from tests.security.guarded import cluster

pytestmark = [pytest.mark.system, pytest.mark.slow]


async def test_one_of_three_servers_is_killed_and_online_requests_go_on(tmp_path, toy):
    """At least 999 of 1,000 are answered, and whoever was on it is on another one soon."""
    nodes = cluster(tmp_path)
    guarded, port = nodes.guarded, free_port()
    running: list[subprocess.Popen[bytes]] = []
    clean = {k: v for k, v in os.environ.items() if not k.startswith("HEDGEROW_")}
    worker = ("hedgerow_scheduler", "--device", "fake", "--fake-floor-ms", "10")
    commands = [("worker", worker)] * 3 + [("gateway", ("hedgerow_gateway", "--port", str(port)))]
    try:
        with (tmp_path / "services.log").open("wb") as log:
            for role, command in commands:
                argv = [sys.executable, "-m", *command, "--model", toy, "--die-with-parent"]
                env = clean | guarded.env(role)
                running.append(subprocess.Popen(argv, env=env, stdout=log, stderr=log))
        url = f"http://127.0.0.1:{port}"
        end_s = time.monotonic() + 60
        while await workers_at(url) != 3:
            assert time.monotonic() < end_s, (tmp_path / "services.log").read_text()[-3000:]
            await asyncio.sleep(0.1)
        async with Load(f"{url}/v1/embeddings", callers=8, ttl_s=15) as load:
            await asyncio.sleep(2)
            nodes.servers[1].kill()
            await asyncio.sleep(8)
        good = load.statuses[200] / len(load.outcomes)
        assert good >= 0.999, load.errors()
        assert len(load.outcomes) > 300
        bus = await Bus.connect(guarded.options("public"))
        assert len(await bus.request_many("$SRV.PING.hedgerow", b"", timeout_s=2.0)) == 4
        await bus.close(patience_s=0)
    finally:
        for process in running:
            process.terminate()
        ends = [process.wait(40) for process in running]
        nodes.stop()
    text = (tmp_path / "services.log").read_text()
    assert ends == [0] * 4, text[-3000:]
    # An answer kept while its connection was down is refused on the next one, where nobody asked;
    # the gateway has sent that chunk again by then.
    refusals = [line for line in text.splitlines() if "may not" in line]
    assert all("publish to _inbox_gateway" in line for line in refusals), refusals


async def workers_at(url: str) -> int:
    try:
        async with httpx.AsyncClient() as client:
            models = (await client.get(f"{url}/v1/models")).json()["data"]
    except (httpx.HTTPError, ValueError, KeyError):
        return 0
    return models[0]["workers"]
