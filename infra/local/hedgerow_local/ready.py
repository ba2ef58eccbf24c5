"""When a system that was just started may be called ready: all of it answers, not some of it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from hedgerow_local.banner import reachable
from hedgerow_local.keeper import Keeper
from hedgerow_local.logs import LogSink
from hedgerow_shared.bus import Bus, BusOptions
from hedgerow_shared.errors import HedgerowError

_POLL_S = 0.1
_REMIND_S = 15.0


async def wait_ready(
    options: BusOptions, host: str, port: int, services: Sequence[Keeper], sink: LogSink
) -> list[dict[str, Any]]:
    """Return each service's STATS once all answer and the gateway says it is ready.

    Waits as long as it takes, and tells every 15 s what it waits for. Raises StartupError when
    the bus cannot be reached.
    """
    bus = await Bus.connect(options)
    try:
        begin, reminded = time.monotonic(), 0
        while missing := await _missing(bus, host, port, services):
            waited_s = time.monotonic() - begin
            if waited_s // _REMIND_S > reminded:
                reminded = int(waited_s // _REMIND_S)
                sink.put("up", f"still waiting for {', '.join(missing)} ({waited_s:.0f} s)")
            await asyncio.sleep(_POLL_S)
        return await discover(bus, "STATS", max_replies=_answers(services))
    finally:
        await bus.close()


def engines(said: Sequence[Mapping[str, Any]], aliases: Sequence[str]) -> list[str]:
    """What each model runs on, each combination once: `minilm: native avx512bf16, bfloat16`.

    aliases: in the order in which their models are to be listed; others come last.
    """
    found: dict[str, int] = {}
    for reply in said:
        data = ((reply.get("endpoints") or [{}])[0]).get("data") or {}
        for alias, model in (data.get("models") or {}).items():
            engine: Mapping[str, Any] = model.get("engine") or {}
            what = [str(engine[key]) for key in ("executor", "dtype") if engine.get(key)]
            if what:
                place = aliases.index(alias) if alias in aliases else len(aliases)
                found[f"{alias}: {', '.join(what)}"] = place
    return sorted(found, key=lambda line: (found[line], line))


async def _missing(bus: Bus, host: str, port: int, services: Sequence[Keeper]) -> list[str]:
    """Names of what does not answer yet."""
    found = await discover(bus, "PING", max_replies=_answers(services))
    ids = {str(info.get("id")) for info in found}
    silent = [
        keeper.spec.name
        for keeper in services
        if keeper.child is None or keeper.child.id not in ids
    ]
    if silent:
        return silent
    status = await http_status(reachable(host), port, "/health/ready")
    return [] if status == 200 else [f"the gateway (/health/ready: {status or 'no answer'})"]


def _answers(services: Sequence[Keeper]) -> int:
    """How many say something on the bus once all are there."""
    return sum(keeper.spec.services for keeper in services)


async def discover(
    bus: Bus, verb: str, *, timeout_s: float = 0.3, max_replies: int | None = None
) -> list[dict[str, Any]]:
    """What every service of ours says to $SRV.PING, INFO or STATS; [] when none is there."""
    try:
        replies = await bus.request_many(
            f"$SRV.{verb}.hedgerow", b"", timeout_s=timeout_s, max_replies=max_replies
        )
    except HedgerowError:
        return []
    return [json.loads(reply.data) for reply in replies]


async def http_status(host: str, port: int, path: str, timeout_s: float = 2.0) -> int:
    """Status of a GET; 0 when nobody answers in time."""
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                request = f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
                writer.write(request.encode("ascii"))
                line = await reader.readline()
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return 0
    parts = line.split()
    return int(parts[1]) if len(parts) > 1 and parts[1].isdigit() else 0
