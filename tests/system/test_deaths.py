"""Parts are killed under load: every request ends, nothing hangs, and `up` brings the part back."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import time
import tomllib
from collections import Counter

import pytest

from hedgerow_shared import subjects
from hedgerow_shared.bus import Bus, BusOptions
from tests.system.up_process import Up, exists, until

pytestmark = pytest.mark.system

ENDINGS = {200, 429, 503, 504}


class Load:
    """Several callers that send one request after the other, and keep how each ended."""

    def __init__(self, up: Up, callers: int = 6) -> None:
        self.statuses: Counter[int] = Counter()
        self.slowest_s = 0.0
        self._up = up
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._call, args=(i,)) for i in range(callers)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in self._threads), "a request never ended"

    def _call(self, caller: int) -> None:
        count = 0
        while not self._stop.is_set():
            begin = time.monotonic()
            status = self._up.embed([f"caller {caller} text {count} part {i}" for i in range(20)])
            took_s = time.monotonic() - begin
            with self._lock:
                self.statuses[status] += 1
                self.slowest_s = max(self.slowest_s, took_s)
            count += 1
            if status != 200:
                time.sleep(0.05)


def start_loaded(start_up, *flags: str) -> Up:
    return start_up("--device", "fake", *flags, env={"HEDGEROW_FAKE_FLOOR_MS": "10"})


def test_a_worker_is_killed_under_load_and_comes_back(start_up):
    up = start_loaded(start_up, "--workers", "2")
    with Load(up) as load:
        time.sleep(1.0)
        victim = up.pids("hedgerow_scheduler")[0]
        os.kill(victim, signal.SIGKILL)
        until(lambda: len(up.pids("hedgerow_scheduler")) == 2, "a new worker")
        time.sleep(2.0)
    assert set(load.statuses) <= ENDINGS, load.statuses
    assert load.statuses[200] > 20
    assert load.slowest_s < 15
    assert not exists(victim)
    assert "was ended by SIGKILL; starting it again" in "\n".join(up.stderr)
    assert up.embed() == 200


def test_the_only_worker_is_killed_and_comes_back(start_up):
    up = start_loaded(start_up, "--workers", "1")
    with Load(up, callers=3) as load:
        time.sleep(0.5)
        os.kill(up.pids("hedgerow_scheduler")[0], signal.SIGKILL)
        time.sleep(0.5)
        until(lambda: up.embed() == 200, "it serves again")
    assert set(load.statuses) <= ENDINGS, load.statuses
    assert load.slowest_s < 20, "what was lost with the worker went to the new one"


def test_nats_server_is_killed_under_load_and_comes_back(start_up):
    up = start_loaded(start_up, "--workers", "2")
    with Load(up) as load:
        time.sleep(1.0)
        victim = up.pids("nats-server")[0]
        os.kill(victim, signal.SIGKILL)
        until(lambda: [pid for pid in up.pids("nats-server") if pid != victim], "a new server")
        until(lambda: up.embed() == 200, "it serves again")
        time.sleep(1.0)
    assert set(load.statuses) <= ENDINGS, load.statuses
    assert load.slowest_s < 35
    assert "nats was ended by SIGKILL" in "\n".join(up.stderr)
    assert len(up.pids("hedgerow_scheduler")) == 2, "workers joined again by themselves"


def test_the_gateway_is_killed_and_comes_back_on_the_same_port(start_up):
    up = start_loaded(start_up, "--workers", "1")
    os.kill(up.pids("hedgerow_gateway")[0], signal.SIGKILL)
    until(lambda: up.embed() == 200, "it serves again")


def test_streams_survive_the_death_of_nats_server(start_up):
    """The new server has the old one's store: a stream made before is there after."""
    up = start_loaded(start_up, "--workers", "1")
    login = tomllib.loads((up.folder / "data" / "gateway.toml").read_text())
    assert (up.folder / "data" / "gateway.toml").stat().st_mode & 0o777 == 0o600
    options = BusOptions(
        login["nats_url"],
        user=login["nats_user"],
        password=login["nats_password"],
        inbox_prefix=login["nats_inbox_prefix"],
    )
    stream = subjects.STREAM_DEAD

    async def call(verb: str, body: dict) -> dict:
        bus = await Bus.connect(options)
        subject = f"$JS.API.STREAM.{verb}.{stream}"
        reply = await bus.request(subject, json.dumps(body).encode(), timeout_s=10)
        await bus.close()
        return json.loads(reply.data)

    asyncio.run(call("CREATE", {"name": stream, "subjects": ["hedgerow.dead.>"]}))
    before = asyncio.run(call("INFO", {}))
    assert before["config"]["name"] == stream
    victim = up.pids("nats-server")[0]
    os.kill(victim, signal.SIGKILL)
    until(lambda: [pid for pid in up.pids("nats-server") if pid != victim], "a new server")
    until(lambda: up.embed() == 200, "it serves again")
    assert asyncio.run(call("INFO", {}))["created"] == before["created"]
