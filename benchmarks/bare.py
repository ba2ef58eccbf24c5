"""The least that text over HTTP and NATS to this engine can cost on this machine, in Python.

An aiohttp server that passes token ids on, and a nats-py worker that runs the engine where it
stands: no checks, no lanes, no deadlines, no coalescing, no metrics, one request at a time. What
Hedgerow takes beyond this is what its features cost; what this takes beyond the engine's step is
the machine's wake-ups, sockets and cold caches.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any, cast

import msgpack
import nats
import numpy as np
import numpy.typing as npt
import orjson
import uvloop
from aiohttp import web

from benchmarks.engine.adapters import open_adapter
from benchmarks.server import Process, free_port, wait_for
from benchmarks.target import Target
from hedgerow_shared import natsserver

CHUNK, EMBED = "bare.chunk", "bare.embed"


@contextlib.contextmanager
def bare_chain(folder: Path, length: int) -> Generator[Target, None, None]:
    """A server, a gateway and a worker; the target answers on `/` and on `bare.embed`."""
    port, parts = free_port(), list[Process]()
    with tempfile.TemporaryDirectory(prefix="hedgerow-bare-") as scratch:
        bus = natsserver.start(Path(scratch), jetstream=False)
        try:
            for role in (["worker", str(folder), str(length)], ["gateway", str(port)]):
                command = [sys.executable, "-m", "benchmarks.bare", bus.url, *role]
                parts.append(Process(command))
                parts[-1].start()
                wait_for(parts[-1], "bare: ready", within_s=60)
            yield Target(name="bare chain", port=port, path="/", nats_url=bus.url)
        finally:
            for part in reversed(parts):
                part.stop()
            bus.stop()


async def _worker(url: str, folder: str, length: str) -> None:
    ask = {"engine": "hedgerow", "model": folder, "threads": 1, "length": int(length)}
    adapter = open_adapter(ask)
    bus = await nats.connect(url)

    async def run(message: Any) -> None:
        ids = np.frombuffer(msgpack.unpackb(message.data), np.int32)
        await message.respond(_packed(adapter.embed([ids])[0]))

    await bus.subscribe(CHUNK, cb=run)
    await _serve(bus)


async def _gateway(url: str, port: str) -> None:
    bus = await nats.connect(url)

    async def embed(body: bytes) -> bytes:
        ids = np.array(orjson.loads(body)["input"][0], np.int32)
        reply = await bus.request(CHUNK, _packed(ids), timeout=60)
        vector = base64.b64encode(msgpack.unpackb(reply.data)).decode()
        return orjson.dumps({"data": [{"index": 0, "embedding": vector}]})

    async def over_http(request: web.Request) -> web.Response:
        return web.Response(body=await embed(await request.read()))

    async def over_nats(message: Any) -> None:
        await message.respond(await embed(message.data))

    await bus.subscribe(EMBED, cb=over_nats)
    app = web.Application()
    app.router.add_post("/", over_http)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", int(port)).start()
    await _serve(bus)


def _packed(array: npt.NDArray[Any]) -> bytes:
    return cast("bytes", msgpack.packb(array.tobytes()))


async def _serve(bus: Any) -> None:
    await bus.flush()
    print("bare: ready", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    _url, _role, *_rest = sys.argv[1:]
    uvloop.run({"worker": _worker, "gateway": _gateway}[_role](_url, *_rest))
