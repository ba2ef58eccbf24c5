"""F10 and F2: a full disk, and a cluster that loses the leader of its streams."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from hedgerow_shared import natsserver, subjects
from hedgerow_shared.bus.jetstream import JetStream, JetStreamError
from tests.bulk.bulk_stack import Stack, assert_right, rows, stacks
from tests.nats_fixture import BinaryNats

SMALL = ("--bulk-max-bytes", str(8 << 20), "--bulk-result-max-bytes", str(8 << 20))


@pytest.fixture
def make_stack(tmp_path: Path) -> Iterator[Callable[[str], Stack]]:
    with stacks(tmp_path) as make:
        yield make


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 128 MB."""
    if os.name != "posix" or os.geteuid() != 0:
        pytest.skip("mounting a small tmpfs takes root")
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=128m", "tmpfs", str(place)]
    made = subprocess.run(mount, capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"no tmpfs here: {made.stderr.strip()}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def fill(file: Path) -> None:
    with file.open("wb", buffering=0) as hog:
        for size in (1 << 20, 4096, 64):
            while True:
                try:
                    if hog.write(b"x" * size) < size:
                        break
                except OSError:
                    break


@pytest.mark.slow
def test_f10_a_full_disk_is_answered_at_once_and_costs_nothing_acknowledged(small_disk, make_stack):
    nats = BinaryNats(small_disk / "nats", extra="", port=0, jetstream=True)
    stack = make_stack(nats.url)
    try:
        stack.gateway("g0", *SMALL)
        stack.ready("/health/live")
        sent = rows(200)
        stack.accepted("kept", sent, last=True)
        hog = small_disk / "hog"
        fill(hog)
        for n in range(3):
            began_s = time.monotonic()
            response = stack.submit(f"late{n}", rows(200, seed=n))
            took_s = time.monotonic() - began_s
            assert response.status_code == 503, response.text
            assert response.json()["error"]["code"] == "storage_unavailable"
            assert took_s < 2.5, "not a hang"
        stack.worker("w0", "--bulk", "off")
        stack.ready()
        for _ in range(20):
            assert stack.http("POST", "/v1/embeddings", {"input": "w1 w2"}).status_code == 200
        hog.unlink()
        # A stream that could not write takes nothing more until its server is started again.
        nats.restart()
        stack.until(
            lambda: stack.http("GET", "/v1/jobs/kept").status_code == 200, "the gateway is back", 10
        )
        stack.worker("w1")
        assert stack.complete("kept")["done"] == 200
        assert_right(stack.results("kept"), sent)
        again = rows(200, seed=0)
        stack.accepted("late0", again, last=True)
        assert stack.complete("late0")["done"] == 200
        assert_right(stack.results("late0"), again)
    finally:
        stack.stop()
        nats.stop()


class Cluster:
    """Three servers with JetStream."""

    def __init__(self, folder: Path) -> None:
        ports = [natsserver.free_port() for _ in range(3)]
        routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port in ports)
        self.servers = [
            natsserver.start(
                folder / f"n{i}",
                extra=f"server_name: n{i}\n"
                f"cluster {{ name: c, host: 127.0.0.1, port: {ports[i]}, routes: [{routes}] }}\n",
            )
            for i in range(3)
        ]

    def url(self, *which: int) -> str:
        return ",".join(self.servers[i].url for i in which)

    def stop(self) -> None:
        for server in self.servers:
            server.stop(2)


class Queries(threading.Thread):
    """Somebody who asks all the time: statuses as they came."""

    def __init__(self, stack: Stack) -> None:
        super().__init__()
        self._url = f"http://127.0.0.1:{stack.port}/v1/embeddings"
        self._ended = threading.Event()
        self.statuses: list[int] = []

    def run(self) -> None:
        with httpx.Client(timeout=40) as client:
            while not self._ended.is_set():
                response = client.post(self._url, json={"input": "w1 w2 w3"})
                self.statuses.append(response.status_code)

    def stop(self) -> None:
        self._ended.set()
        self.join()


async def lead(js: JetStream, stream: str, name: str) -> str:
    """Ask for a leader; returns who it is."""
    with contextlib.suppress(JetStreamError):  # it is the leader already
        await js.call(f"STREAM.LEADER.STEPDOWN.{stream}", {"placement": {"preferred": name}})
    info = await js.stream_info(stream)
    return info["cluster"].get("leader", "") if info else ""


@pytest.mark.slow
def test_f2_the_leader_of_the_streams_dies_in_a_job_of_10_000_chunks(tmp_path, make_stack):
    """Everything acknowledged has its result once, submissions stall for less than 10 s, and
    whoever is on another server sees nothing."""
    cluster = Cluster(tmp_path / "nats")
    stack = make_stack(cluster.url(0, 1))
    try:
        stack.gateway("g0", "--bulk-replicas", "3", "--bulk-chunk-sequences", "1",
                      "--bulk-ack-wait-s", "5")  # fmt: skip
        for n in range(2):
            stack.worker(f"w{n}", "--fake-floor-ms", "0.2", "--fake-ms", "0.2")
        stack.ready()
        sent = rows(10_000, length=3)
        stack.accepted("f2", sent[:500])
        for stream in (subjects.STREAM_BULK, subjects.STREAM_RESULT):
            stack.until(
                lambda stream=stream: stack.streams(lambda js: lead(js, stream, "n2")) == "n2",
                f"n2 leads {stream}",
            )
        queries = Queries(stack)
        queries.start()
        stall_s, killed, last_s = 0.0, False, time.monotonic()
        for start in range(500, 10_000, 500):
            if start == 3000:
                cluster.servers[2].kill()
                killed = True
            stack.accepted("f2", sent[start : start + 500])
            stall_s, last_s = max(stall_s, time.monotonic() - last_s), time.monotonic()
        assert killed
        stack.accepted("f2", [], last=True)
        status = stack.complete("f2", 90.0)
        queries.stop()
        assert (status["submitted"], status["done"], status["failed"]) == (10_000, 10_000, 0)
        assert_right(stack.results("f2", limit=10_000), sent)
        assert stall_s < 10.0
        good = queries.statuses.count(200)
        assert len(queries.statuses) > 500 and good >= 0.999 * len(queries.statuses)
    finally:
        stack.stop()
        cluster.stop()
