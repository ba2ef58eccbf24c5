"""`hedgerow top`: who serves at the moment, how much, and how fast. Reads $SRV.STATS only."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from hedgerow_local.ready import discover
from hedgerow_shared.bus import Bus, BusOptions

_WAIT_S = 0.3


@dataclass(frozen=True, slots=True)
class Sample:
    """What one service said, and when (monotonic seconds)."""

    at_s: float
    id: str
    role: str
    requests: int
    errors: int
    busy_ns: int
    data: Mapping[str, Any]


async def top(options: BusOptions, *, interval_s: float, once: bool) -> int:
    """Show the table until Ctrl-C, or once. Raises StartupError when there is no bus."""
    console = Console()
    bus = await Bus.connect(options)
    try:
        before = await sample(bus)
        if once:
            console.print(render(before, before, bus.url))
            return 0 if before else 1
        with Live(console=console, screen=False, auto_refresh=False) as live:
            while True:
                now = await sample(bus)
                live.update(render(now, before, bus.url), refresh=True)
                before = now
                await asyncio.sleep(max(interval_s - _WAIT_S, 0.1))
    finally:
        await bus.close()


async def sample(bus: Bus) -> dict[str, Sample]:
    """By service id."""
    replies = await discover(bus, "STATS", timeout_s=_WAIT_S)
    found = [read(reply, time.monotonic()) for reply in replies]
    return {one.id: one for one in found}


def read(reply: Mapping[str, Any], at_s: float) -> Sample:
    """One STATS reply of ADR-32. Our services repeat their figures at every endpoint."""
    endpoints: Sequence[Mapping[str, Any]] = reply.get("endpoints") or [{}]
    first = endpoints[0]
    return Sample(
        at_s,
        str(reply.get("id", "")),
        str((reply.get("metadata") or {}).get("role", "?")),
        int(first.get("num_requests") or 0),
        int(first.get("num_errors") or 0),
        int(first.get("processing_time") or 0),
        first.get("data") or {},
    )


def render(now: Mapping[str, Sample], before: Mapping[str, Sample], url: str) -> Group:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("ROLE", "ID"):
        table.add_column(column)
    for column in ("REQ/S", "ERRORS", "MEAN MS", "TOTAL"):
        table.add_column(column, justify="right")
    table.add_column("FIGURES", overflow="fold")
    for one in sorted(now.values(), key=lambda s: (s.role, s.id)):
        table.add_row(one.role, one.id, *_rates(one, before.get(one.id)), _figures(one.data))
    workers = sum(one.role == "worker" for one in now.values())
    head = Text(f"hedgerow on {url}: {len(now) - workers} gateway(s), {workers} worker(s)")
    return Group(head, table) if now else Group(head, Text("nobody answers: is it running?"))


def _rates(one: Sample, before: Sample | None) -> tuple[str, str, str, str]:
    seconds = one.at_s - before.at_s if before else 0.0
    since = one.requests - before.requests if before else 0
    rate = f"{since / seconds:.1f}" if seconds > 0 else "-"
    mean = f"{one.busy_ns / one.requests / 1e6:.2f}" if one.requests else "-"
    return rate, str(one.errors), mean, str(one.requests)


def _figures(data: Mapping[str, Any]) -> str:
    numbers = {k: v for k, v in data.items() if isinstance(v, (int, float)) and v}
    return "  ".join(f"{name} {value:g}" for name, value in sorted(numbers.items()))
