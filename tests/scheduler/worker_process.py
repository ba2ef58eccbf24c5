"""A worker as a real process, with the fake device and a model of three JSON files."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hedgerow_shared import fleet, subjects
from hedgerow_shared.bus import Bus
from hedgerow_shared.ragged import Lane, RaggedBatch
from hedgerow_shared.wire import Chunk, ChunkReply, decode_reply, encode_chunk

MODEL = "tiny"
DIMENSION = 32


def make_model(folder: Path) -> Path:
    """A folder that has a card and no weights: enough for the fake device."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "model_type": "bert",
        "architectures": ["BertModel"],
        "hidden_size": DIMENSION,
        "vocab_size": 30_000,
        "max_position_embeddings": 512,
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text("{}")
    return folder


class WorkerProcess:
    """Started at once; `joined` waits until it has announced itself."""

    def __init__(self, folder: Path, url: str, worker_id: str, *flags: str) -> None:
        self.id = worker_id
        self.log = folder / f"{worker_id}.log"
        argv = [sys.executable, "-m", "hedgerow_scheduler", "--nats-url", url]
        argv += ["--device", "fake", "--model", f"{MODEL}={make_model(folder / 'model')}"]
        argv += ["--worker-id", worker_id, "--die-with-parent", *flags]
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(argv, stdout=out, stderr=out, env=clean_env())

    async def joined(self, bus: Bus, deadline_s: float = 30.0) -> WorkerProcess:
        """Return once the worker answers discovery; fail with its log if it ended instead."""
        end_s = time.monotonic() + deadline_s
        while time.monotonic() < end_s:
            assert self.process.poll() is None, self.log.read_text()
            subject = f"$SRV.PING.{subjects.SERVICE_NAME}.{self.id}"
            if await bus.request_many(subject, b"", timeout_s=0.5, max_replies=1):
                return self
            await asyncio.sleep(0.05)
        raise AssertionError(f"worker {self.id} did not join: {self.log.read_text()}")

    async def ended(self, deadline_s: float = 20.0) -> int:
        return await asyncio.to_thread(self.process.wait, deadline_s)

    def signal(self, signum: signal.Signals) -> None:
        self.process.send_signal(signum)

    @property
    def rss_bytes(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
        return int(line.split()[1]) * 1024

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self.process.wait()


def clean_env() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith("HEDGEROW_")}


def tokens(seed: int, length: int) -> list[int]:
    """Token ids that no poison test uses."""
    return (np.random.default_rng(seed).integers(100, 20_000, length)).tolist()


def chunk(
    chunk_id: str,
    sequences: Sequence[Sequence[int]],
    *,
    lane: Lane = Lane.QUERY,
    ttl_ms: float = 30_000.0,
) -> bytes:
    return encode_chunk(Chunk(chunk_id, MODEL, lane, ttl_ms, RaggedBatch.of(sequences)))


async def ask(bus: Bus, data: bytes, *, worker: str = "", timeout_s: float = 20.0) -> ChunkReply:
    """One request to any worker, or to the one that is named."""
    subject = subjects.worker_chunk(worker, MODEL) if worker else subjects.chunk(MODEL)
    return decode_reply((await bus.request(subject, data, timeout_s=timeout_s)).data)


async def stats(bus: Bus, worker: str) -> dict[str, Any]:
    """What a worker says of itself on $SRV.STATS."""
    subject = f"$SRV.STATS.{subjects.SERVICE_NAME}.{worker}"
    (message,) = await bus.request_many(subject, b"", timeout_s=5.0, max_replies=1)
    return json.loads(message.data)["endpoints"][0]["data"]


async def watch_fleet(bus: Bus) -> list[fleet.FleetEvent]:
    """Every announcement from now on, as they come."""
    events: list[fleet.FleetEvent] = []
    await bus.subscribe(subjects.FLEET, lambda m: events.append(fleet.decode_event(m.data)))
    await bus.barrier()
    return events
