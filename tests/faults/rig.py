"""A system of real processes that a test may break, and callers that see what happens then."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from hedgerow_shared.natsserver import free_port
from tests.gateway.stack import Stack
from tests.nats_fixture import BinaryNats


class Rig(Stack):
    """nats-server, gateways and fake workers. `monitor` is the server's HTTP port."""

    monitor: int

    def gateway(self, *args: str) -> subprocess.Popen[bytes]:
        """Start a gateway, on a port of its own or the one it is told. `url`: the last one's."""
        process = super().gateway(*args)
        if "--port" in args:
            self.port = int(args[args.index("--port") + 1])
        return process

    @property
    def embed_url(self) -> str:
        return f"{self.url}/v1/embeddings"

    def metric(self, name: str, **labels: str) -> float:
        """Sum of the gateway's samples of that name with these labels; 0 when there is none."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=10) as reply:
            text = reply.read().decode()
        total = 0.0
        for line in re.findall(rf"^{name}(?:\{{.*\}})? .*$", text, re.MULTILINE):
            if all(f'{key}="{value}"' in line for key, value in labels.items()):
                total += float(line.rpartition(" ")[2])
        return total

    def connections(self, **query: str) -> list[dict[str, Any]]:
        """What nats-server says of its clients."""
        asked = "&".join(f"{key}={value}" for key, value in query.items())
        url = f"http://127.0.0.1:{self.monitor}/connz?{asked}"
        with urllib.request.urlopen(url, timeout=5) as reply:
            return json.load(reply)["connections"]

    def alive(self) -> bool:
        return all(p.poll() is None for p in self.gateways + self.workers)


@contextmanager
def running_rig(folder: Path, *models: str, extra: str = "", host: str = "") -> Iterator[Rig]:
    """Starts the bus only, as a process: tests stop it, and ask its monitoring port. extra: more
    lines of its configuration."""
    folder.mkdir(parents=True, exist_ok=True)
    monitor = free_port()
    lines = f'http: "127.0.0.1:{monitor}"\n{extra}'
    rig = Rig(
        folder, BinaryNats(folder / "nats", extra=lines, port=0, jetstream=True), list(models)
    )
    rig.monitor = monitor
    try:
        yield rig
    finally:
        rig.stop()


@dataclass(slots=True)
class Outcome:
    """How one request ended. status 0: no answer at all, `error` says why."""

    status: int
    sent_s: float
    took_s: float
    error: str = ""
    retry_after: str = ""


@dataclass
class Load:
    """`callers` that send one request after the other (or each every `every_s`) until `stop`.

    lag_s: how late this process itself was at worst; a busy machine is nobody's fault
    """

    url: str
    callers: int = 8
    every_s: float = 0.0
    ttl_s: float = 30.0
    texts: int = 1
    words: int = 4
    keep_alive: bool = True
    outcomes: list[Outcome] = field(default_factory=list)
    lag_s: float = 0.0

    async def __aenter__(self) -> Load:
        connector = aiohttp.TCPConnector(limit=0, force_close=not self.keep_alive)
        self._session = aiohttp.ClientSession(connector=connector)
        self._stop = asyncio.Event()
        self._tasks = [asyncio.create_task(self._call(i)) for i in range(self.callers)]
        self._clock = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Let every caller finish its last request."""
        self._stop.set()
        await asyncio.wait_for(asyncio.gather(*self._tasks), self.ttl_s + 10)
        self._clock.cancel()
        await self._session.close()

    @property
    def statuses(self) -> Counter[int]:
        return Counter(o.status for o in self.outcomes)

    def since(self, start_s: float, end_s: float = float("inf")) -> list[Outcome]:
        """Of the requests sent in this time (monotonic)."""
        return [o for o in self.outcomes if start_s <= o.sent_s < end_s]

    def errors(self) -> Counter[str]:
        return Counter(f"{o.status} {o.error[:90]}" for o in self.outcomes if o.status != 200)

    async def _call(self, caller: int) -> None:
        count = 0
        while not self._stop.is_set():
            count += 1
            texts = [
                " ".join(f"{caller} {count} {i}" for _ in range(self.words))
                for i in range(self.texts)
            ]
            self.outcomes.append(await self._one({"input": texts}))
            if self.outcomes[-1].status != 200:
                await asyncio.sleep(0.02)
            if self.every_s:
                await asyncio.sleep(self.every_s)

    async def _one(self, body: dict[str, Any]) -> Outcome:
        sent_s = time.monotonic()
        headers = {"Hedgerow-Ttl-Ms": str(int(self.ttl_s * 1000))}
        try:
            async with self._session.post(self.url, json=body, headers=headers) as reply:
                text = await reply.text()
                status, after = reply.status, reply.headers.get("Retry-After", "")
        except aiohttp.ClientError as error:
            return Outcome(0, sent_s, time.monotonic() - sent_s, f"{type(error).__name__} {error}")
        error = "" if status == 200 else text
        return Outcome(status, sent_s, time.monotonic() - sent_s, error, after)

    async def _watch(self) -> None:
        while True:
            began_s = time.monotonic()
            await asyncio.sleep(0.02)
            self.lag_s = max(self.lag_s, time.monotonic() - began_s - 0.02)


def p99(outcomes: list[Outcome]) -> float:
    ordered = sorted(o.took_s for o in outcomes)
    return ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]


def stop_process(process: Any) -> None:
    process.send_signal(signal.SIGSTOP)


def go_on(process: Any) -> None:
    process.send_signal(signal.SIGCONT)
