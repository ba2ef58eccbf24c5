"""F6: the network between a worker and the bus goes away for half a minute, and comes back."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from hedgerow_shared import natsserver, subjects
from hedgerow_shared.bus import Bus, BusOptions
from tests.scheduler.worker_process import MODEL, ask, chunk, clean_env, make_model, tokens

pytestmark = [pytest.mark.system, pytest.mark.slow]


@dataclass
class Wire:
    """A network namespace, joined to this one by a pair of virtual interfaces."""

    space: str
    here: str
    address: str

    def link(self, state: str) -> None:
        """ "down" cuts it without a word to either side."""
        _ip("link", "set", self.here, state)


def _ip(*args: str) -> None:
    subprocess.run(["ip", *args], check=True, capture_output=True, text=True)


@pytest.fixture
def wire() -> Iterator[Wire]:
    if shutil.which("ip") is None:
        pytest.skip("needs iproute2")
    tag = f"{os.getpid() % 100_000}"
    made = Wire(f"hedgerow{tag}", f"hga{tag}", f"10.{200 + os.getpid() % 50}.77.1")
    there = made.address[:-1] + "2"
    try:
        _ip("netns", "add", made.space)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"needs the right to make a network namespace: {error.stderr.strip()}")
    try:
        _ip("link", "add", made.here, "type", "veth", "peer", "name", "hgb", "netns", made.space)
        _ip("addr", "add", f"{made.address}/24", "dev", made.here)
        _ip("link", "set", made.here, "up")
        _ip("-n", made.space, "addr", "add", f"{there}/24", "dev", "hgb")
        _ip("-n", made.space, "link", "set", "hgb", "up")
        yield made
    finally:
        subprocess.run(["ip", "netns", "del", made.space], capture_output=True)
        subprocess.run(["ip", "link", "del", made.here], capture_output=True)


async def test_f6_a_worker_cut_off_for_30_seconds_serves_again_within_5(wire, tmp_path):
    monitor = natsserver.free_port()
    server = natsserver.start(
        tmp_path / "nats", host=wire.address, extra=f'http: "127.0.0.1:{monitor}"\n'
    )
    argv = ["ip", "netns", "exec", wire.space, sys.executable, "-m", "hedgerow_scheduler"]
    argv += ["--nats-url", server.url, "--device", "fake", "--worker-id", "w1", "--bulk", "off"]
    argv += ["--model", f"{MODEL}={make_model(tmp_path / 'model')}"]
    log = tmp_path / "w1.log"
    with log.open("wb") as out:
        worker = subprocess.Popen(argv, stdout=out, stderr=out, env=clean_env())
    bus = await Bus.connect(BusOptions(server.url))
    try:
        await answers(bus, worker, log, 30)
        assert memberships(monitor) == 1
        wire.link("down")
        # Something is on its way when it happens: unsent bytes are what made reconnecting hang.
        for i in range(50):
            await bus.publish(
                subjects.chunk(MODEL), chunk(f"c{i}", [tokens(i, 500)]), reply=bus.new_inbox()
            )
        await asyncio.sleep(30)
        assert memberships(monitor) == 0, "the server let it go"
        wire.link("up")
        healed_s = time.monotonic()
        await answers(bus, worker, log, 5)
        assert time.monotonic() - healed_s < 5
        assert memberships(monitor) == 1, "once in the queue group, not twice"
        assert worker.poll() is None
    finally:
        worker.terminate()
        ended = worker.wait(40)
        await bus.close(patience_s=0)
        server.stop()
    assert ended == 0, log.read_text()


async def answers(bus: Bus, worker: subprocess.Popen, log: Path, within_s: float) -> None:
    """Return once the worker answers a chunk."""
    end_s = time.monotonic() + within_s
    while time.monotonic() < end_s:
        assert worker.poll() is None, log.read_text()
        try:
            reply = await ask(bus, chunk("probe", [tokens(1, 8)]), timeout_s=0.5)
        except Exception:
            await asyncio.sleep(0.05)
            continue
        if reply.error is None:
            return
    raise AssertionError(f"no answer within {within_s} s: {log.read_text()}")


def memberships(monitor: int) -> int:
    """Subscriptions to the chunk subject in the queue group, as the server counts them."""
    url = f"http://127.0.0.1:{monitor}/connz?subs=detail"
    with urllib.request.urlopen(url, timeout=5) as reply:
        connections = json.load(reply)["connections"]
    found = [s for c in connections for s in c.get("subscriptions_list_detail", [])]
    return sum(s["subject"] == subjects.chunk(MODEL) and bool(s.get("qgroup")) for s in found)
