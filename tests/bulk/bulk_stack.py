"""Gateways and workers as real processes over a bus with JetStream, and jobs sent to them."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers

from hedgerow_scheduler.fake_engine import fake_vector
from hedgerow_shared.bus import Bus, BusOptions
from hedgerow_shared.bus.jetstream import JetStream
from hedgerow_shared.natsserver import free_port

MODEL = "tiny"
DIMENSION = 32
WORDS = 2000
FIRST_WORD = 5
"""The word w7 has the id 12."""


def make_model(folder: Path) -> Path:
    """A folder with a tokenizer of whole words and no weights: enough for the fake device."""
    if folder.exists():
        return folder
    folder.mkdir(parents=True)
    vocab = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4}
    vocab |= {f"w{n}": FIRST_WORD + n for n in range(WORDS)}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "model_type": "bert",
        "architectures": ["BertModel"],
        "hidden_size": DIMENSION,
        "vocab_size": len(vocab),
        "max_position_embeddings": 512,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def word_id(text: str) -> int:
    return FIRST_WORD + int(text[1:])


def vector(text: str, dimension: int = DIMENSION) -> np.ndarray:
    """What the fake device answers for a text of our words."""
    return fake_vector([word_id(word) for word in text.split()], dimension)


def rows(count: int, *, length: int = 6, seed: int = 0) -> list[dict[str, Any]]:
    """Rows of words below w1000; the others are for poison."""
    words = np.random.default_rng(seed).integers(0, 1000, (count, length))
    return [{"id": f"r{i}", "text": " ".join(f"w{w}" for w in row)} for i, row in enumerate(words)]


class Process:
    """One gateway or worker."""

    def __init__(self, folder: Path, name: str, module: str, *flags: str) -> None:
        self.name = name
        self.is_worker = module == "hedgerow_scheduler"
        self.log = folder / f"{name}.log"
        env = {k: v for k, v in os.environ.items() if not k.startswith("HEDGEROW_")}
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, "--die-with-parent", *flags],
                stdout=out,
                stderr=out,
                stdin=subprocess.DEVNULL,
                env=env,
            )

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self.process.wait()


class Stack:
    """url: of the bus. The newest gateway answers `http`."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url = folder, url
        self.model = make_model(folder / "model")
        self.processes: list[Process] = []
        self.port = 0

    def worker(self, name: str, *flags: str, url: str = "") -> Process:
        """A worker on the fake device; 1 ms a step unless the flags say otherwise."""
        flags = ("--device", "fake", "--fake-ms", "1", "--fake-floor-ms", "1", *flags)
        return self._start(name, "hedgerow_scheduler", "--worker-id", name, *flags, url=url)

    def gateway(self, name: str, *flags: str, url: str = "") -> Process:
        self.port = free_port()
        flags = ("--port", str(self.port), "--gateway-id", name, "--fleet-poll-s", "0.5", *flags)
        return self._start(name, "hedgerow_gateway", *flags, url=url)

    def _start(self, name: str, module: str, *flags: str, url: str = "") -> Process:
        flags = ("--nats-url", url or self.url, "--model", f"{MODEL}={self.model}", *flags)
        process = Process(self.folder, name, module, *flags)
        self.processes.append(process)
        return process

    def http(self, method: str, path: str, body: Any = None, **options: Any) -> httpx.Response:
        url = f"http://127.0.0.1:{self.port}{path}"
        return httpx.request(method, url, json=body, timeout=60, **options)

    def ready(self, what: str = "/health/ready", deadline_s: float = 40.0) -> None:
        """Until the gateway answers 200 there and every worker that lives has joined."""

        def answers() -> bool:
            try:
                return self.http("GET", what).status_code == 200
            except httpx.HTTPError:
                return False

        self.until(answers, f"{what} answers", deadline_s)
        workers = {p.name for p in self.processes if p.is_worker and p.process.poll() is None}
        if workers:  # a test may have stopped the bus that it runs without workers
            self.until(lambda: workers <= self.joined(), f"{workers} have joined", deadline_s)

    def joined(self) -> set[str]:
        """The names of the workers that answer on the bus."""

        async def ask() -> set[str]:
            bus = await Bus.connect(BusOptions(url=self.url))
            replies = await bus.request_many("$SRV.PING.hedgerow", b"", timeout_s=0.25)
            await bus.close()
            return {json.loads(reply.data)["id"] for reply in replies}

        return asyncio.run(ask())

    def all_busy(self, *workers: Process) -> None:
        """Until each of them holds bulk chunks."""
        holds = lambda: all(self.stats(w.name)["open_chunks"] > 0 for w in workers)  # noqa: E731
        self.until(holds, "every worker is in the middle of it")

    def until(self, condition: Callable[[], Any], what: str, deadline_s: float = 30.0) -> Any:
        end_s = time.monotonic() + deadline_s
        while True:
            value = condition()
            if value:
                return value
            if time.monotonic() > end_s:
                raise AssertionError(f"not within {deadline_s} s: {what}\n{self.logs()}")
            time.sleep(0.05)

    def metric(self, name: str) -> float:
        """The gateway's figure of that name for the model; -1 while there is none."""
        text = self.http("GET", "/metrics").text
        found = re.search(rf'^{name}{{model="{MODEL}"}} (\S+)$', text, re.MULTILINE)
        return float(found[1]) if found else -1.0

    def submit(self, job: str, batch: Sequence[Any], **body: Any) -> httpx.Response:
        return self.http("POST", "/v1/bulk", {"job": job, "rows": list(batch), **body})

    def accepted(self, job: str, batch: Sequence[Any], **body: Any) -> dict[str, Any]:
        """Submit, and again while there is no storage (a stream that is made at this moment)."""

        def stored() -> Any:
            response = self.submit(job, batch, **body)
            if response.status_code == 200:
                return response.json()
            assert response.status_code == 503, response.text
            return None

        return self.until(stored, f"job {job} is stored")

    def status(self, job: str) -> dict[str, Any]:
        response = self.http("GET", f"/v1/jobs/{job}")
        assert response.status_code == 200, response.text
        return response.json()

    def complete(self, job: str, deadline_s: float = 60.0) -> dict[str, Any]:
        """The status once everything of a closed job is settled."""

        def done() -> Any:
            status = self.status(job)
            return status if status["state"] == "complete" else None

        return self.until(done, f"job {job} is complete", deadline_s)

    def results(self, job: str, **query: Any) -> list[dict[str, Any]]:
        """Every row of every page, in the order they were stored."""
        found: list[dict[str, Any]] = []
        start = 1
        while True:
            query |= {"from": start}
            response = self.http("GET", f"/v1/jobs/{job}/results", params=query)
            assert response.status_code == 200, response.text
            page = response.json()
            found += page["results"]
            if not page["pending_chunks"]:
                return found
            assert page["next"] > start, "a page with results behind it goes on"
            start = page["next"]

    def logs(self) -> str:
        return "\n".join(
            f"--- {f.name}\n{f.read_text()[-3000:]}" for f in self.folder.glob("*.log")
        )

    def streams(self, use: Callable[[JetStream], Awaitable[Any]]) -> Any:
        """Something done to the streams from outside."""

        async def go() -> Any:
            bus = await Bus.connect(BusOptions(url=self.url))
            try:
                return await use(JetStream(bus))
            finally:
                await bus.close()

        return asyncio.run(go())

    def messages(self, stream: str) -> int:
        info = self.streams(lambda js: js.stream_info(stream))
        return info["state"]["messages"] if info else 0

    def consumer(self) -> dict[str, Any]:
        """How the workers of the model stand with the stream."""
        name = f"HEDGEROW_BULK.workers-{MODEL}"
        return self.streams(lambda js: js.call(f"CONSUMER.INFO.{name}"))

    def stats(self, worker: str) -> dict[str, Any]:
        """What a worker says of itself."""

        async def ask() -> Any:
            bus = await Bus.connect(BusOptions(url=self.url))
            subject = f"$SRV.STATS.hedgerow.{worker}"
            (reply,) = await bus.request_many(subject, b"", timeout_s=5.0, max_replies=1)
            await bus.close()
            return json.loads(reply.data)["endpoints"][0]["data"]

        return asyncio.run(ask())

    def stop(self) -> None:
        for process in self.processes:
            process.stop()


@contextmanager
def stacks(folder: Path) -> Iterator[Callable[[str], Stack]]:
    """`make(url)`: a stack on the bus there; all are stopped at the end."""
    made: list[Stack] = []

    def make(url: str) -> Stack:
        place = folder / f"stack{len(made)}"
        place.mkdir()
        made.append(Stack(place, url))
        return made[-1]

    try:
        yield make
    finally:
        for stack in made:
            stack.stop()


def assert_right(found: Sequence[dict[str, Any]], sent: Sequence[dict[str, Any]]) -> None:
    """Each row sent came back once, with the vector of its text."""
    by_id = {row["id"]: row for row in found}
    assert len(by_id) == len(found), "a row came back twice"
    assert by_id.keys() == {row["id"] for row in sent}
    for row in sent:
        got = np.array(by_id[row["id"]]["embedding"], np.float32)
        assert np.array_equal(got, vector(row["text"])), row
