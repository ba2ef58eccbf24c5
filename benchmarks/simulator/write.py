"""docs/simulation.md: its tables stand between markers and are rewritten by every full run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.machine import ROOT
from benchmarks.rows import Row, number

DOCS = ROOT / "docs" / "simulation.md"
START, END = "<!-- simulation:start -->", "<!-- simulation:end -->"


def write_docs(rows: Sequence[Row], file: Path = DOCS) -> Path:
    """Put the tables of these rows between the markers. Raises RuntimeError without markers."""
    before, start, rest = file.read_text("utf-8").partition(START)
    _, end, after = rest.partition(END)
    if not start or not end:
        raise RuntimeError(f"{file} needs {START} and {END}")
    cases = list(dict.fromkeys(row.case for row in rows))
    tables = [_table(case, [row for row in rows if row.case == case]) for case in cases]
    file.write_text(f"{before}{START}\n\n{''.join(tables)}{END}{after}", "utf-8")
    return file


def _table(case: str, rows: Sequence[Row]) -> str:
    extra = list(dict.fromkeys(name for row in rows for name in row.extra))
    names = ["query p50", "p99", *extra, "queries"]
    head = f"**{case}**\n\n| | {' | '.join(names)} |\n|---{'|---' * len(names)}|\n"
    return head + "".join(_line(row, extra) for row in rows) + "\n"


def _line(row: Row, extra: Sequence[str]) -> str:
    cells = [number(row.p50), number(row.p99), *(number(row.extra.get(name)) for name in extra)]
    return f"| {row.engine} | {' | '.join(cells)} | {row.samples:,} |\n"
