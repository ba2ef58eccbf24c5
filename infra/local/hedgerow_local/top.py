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

_WIDE = 100
"""Columns of a terminal from which on models and their engines find room."""

_COLUMNS = (
    *("ROLE", "ID", "REQ/S", "ERRORS", "TOK/S", "WAITING", "BATCH"),
    *("WAIT p50/p99", "RUN p50/p99", "MODELS"),
)
"""WAITING and BATCH in tokens, WAIT and RUN in milliseconds."""

_LEFT = ("ROLE", "ID", "MODELS")


@dataclass(frozen=True, slots=True)
class Sample:
    """What one service said, and when (monotonic seconds). `data` is of its own making."""

    at_s: float
    id: str
    role: str
    requests: int
    errors: int
    data: Mapping[str, Any]


async def top(options: BusOptions, *, interval_s: float, once: bool) -> int:
    """Show the table until Ctrl-C, or once. Raises StartupError when there is no bus."""
    console = Console()
    bus = await Bus.connect(options)
    try:
        before = await sample(bus)
        if once:
            show(console, before, before, bus.url)
            return 0 if before else 1
        while not console.is_terminal:
            await asyncio.sleep(interval_s)
            now = await sample(bus)
            show(console, now, before, bus.url)
            before = now
        with Live(console=console, screen=False, auto_refresh=False) as live:
            while True:
                now = await sample(bus)
                live.update(render(now, before, bus.url, console.width), refresh=True)
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
        first.get("data") or {},
    )


def show(
    console: Console, now: Mapping[str, Sample], before: Mapping[str, Sample], url: str
) -> None:
    """One table: fitted to a terminal, else plain columns of any width for a file or `grep`."""
    if console.is_terminal:
        console.print(render(now, before, url, console.width))
    else:
        console.file.write(plain(now, before, url))
        console.file.flush()


def render(
    now: Mapping[str, Sample], before: Mapping[str, Sample], url: str, width: int
) -> Group | Text:
    """For a terminal of `width` columns. Rates are since `before`; waiting and running times are
    of the worker's last 1,024 chunks. Below 100 columns models and their engines are left out."""
    head = Text(_head(now, url))
    if not now:
        return head
    wide = width >= _WIDE
    table = Table(
        box=None, pad_edge=False, header_style="bold", padding=(0, 2 if wide else 1, 0, 0)
    )
    for index, column in enumerate(_COLUMNS if wide else _COLUMNS[:-1]):
        table.add_column(
            column,
            justify="left" if column in _LEFT else "right",
            overflow="fold",
            no_wrap=index < len(_COLUMNS) - 1,
        )
    for row in _rows(now, before):
        table.add_row(*(row if wide else row[:-1]))
    return Group(head, table)


def plain(now: Mapping[str, Sample], before: Mapping[str, Sample], url: str) -> str:
    """One line for each service, nothing wrapped or cut."""
    rows = [list(_COLUMNS), *_rows(now, before)] if now else []
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = [_head(now, url)]
    for row in rows:
        cells = [
            cell.ljust(width) if name in _LEFT else cell.rjust(width)
            for name, cell, width in zip(_COLUMNS, row, widths, strict=True)
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines) + "\n"


def _head(now: Mapping[str, Sample], url: str) -> str:
    workers = sum(one.role == "worker" for one in now.values())
    head = f"hedgerow on {url}: {len(now) - workers} gateway(s), {workers} worker(s)"
    return head if now else f"{head}\nnobody answers: is it running?"


def _rows(now: Mapping[str, Sample], before: Mapping[str, Sample]) -> list[list[str]]:
    """A cell for each of _COLUMNS."""
    ordered = sorted(now.values(), key=lambda s: (s.role, s.id))
    return [[one.role, one.id, *_row(one, before.get(one.id))] for one in ordered]


def _row(one: Sample, before: Sample | None) -> list[str]:
    if one.role != "worker":
        return [_rate(one, before, one.requests, "requests"), str(one.errors), *[""] * 6]
    tokens, batches = one.data.get("tokens", 0), one.data.get("batches", 0)
    return [
        _rate(one, before, one.requests, "requests"),
        str(one.errors),
        _rate(one, before, tokens, "tokens"),
        str(one.data.get("backlog_tokens", 0)),
        f"{tokens / batches:.0f}" if batches else "-",
        *(
            f"{one.data.get(f'{name}_p50', 0.0):.1f}/{one.data.get(f'{name}_p99', 0.0):.1f}"
            for name in ("queue_ms", "compute_ms")
        ),
        ", ".join(_model(alias, model) for alias, model in one.data.get("models", {}).items()),
    ]


def _rate(one: Sample, before: Sample | None, count: float, name: str) -> str:
    if before is None or one.at_s <= before.at_s:
        return "-"
    earlier = before.requests if name == "requests" else before.data.get(name, 0)
    return f"{(count - earlier) / (one.at_s - before.at_s):.1f}"


def _model(alias: str, model: Mapping[str, Any]) -> str:
    engine: Mapping[str, Any] = model.get("engine") or {}
    known = [str(engine[key]) for key in ("executor", "dtype") if key in engine]
    return f"{alias} ({' '.join(known)})" if known else alias
