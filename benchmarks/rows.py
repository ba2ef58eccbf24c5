"""One row per line of a table: how a measurement is kept, written and printed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from benchmarks.machine import RESULTS, machine_line
from benchmarks.machine import versions as installed_versions


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measured line. Latencies fill p50..max, throughputs and scores fill `rate`.

    case: the workload ("1x128"); engine: who did it ("hedgerow", "openvino bf16")
    samples: how many timed calls the figures rest on
    extra: further figures of the same line, by name (ratio, cosine, fraction of the floor)
    note: what a reader must know to believe the line (smaller requests, a busy machine)
    """

    suite: str
    case: str
    engine: str
    unit: str
    samples: int
    p50: float | None = None
    p90: float | None = None
    p99: float | None = None
    max: float | None = None
    rate: float | None = None
    model: str = ""
    dtype: str = ""
    extra: Mapping[str, float | int | str] = field(default_factory=dict)
    note: str = ""
    machine: str = field(default_factory=machine_line)
    versions: Mapping[str, str] = field(default_factory=installed_versions)


class Spread(TypedDict):
    """Percentiles under the names a Row has for them."""

    p50: float
    p90: float
    p99: float
    max: float


def percentiles(values: Sequence[float]) -> Spread:
    """p50, p90, p99 (interpolated) and max of at least one sample."""
    p50, p90, p99 = (float(p) for p in np.percentile(np.asarray(values), [50, 90, 99]))
    return Spread(p50=p50, p90=p90, p99=p99, max=float(max(values)))


def write(name: str, rows: Sequence[Row], *, quick: bool) -> Path:
    """Write `results/NAME.json`: a JSON array, one row on each line, so that diffs read well.

    A quick run goes to `results/tmp/` and never replaces a full one.
    """
    folder = RESULTS / "tmp" if quick else RESULTS
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(_slim(row), ensure_ascii=False) for row in rows]
    file = folder / f"{name}.json"
    file.write_text("[\n" + ",\n".join(lines) + "\n]\n", "utf-8")
    return file


def read(name: str, folder: Path = RESULTS) -> list[Row]:
    """Rows of one results file; empty when it was never measured."""
    file = folder / f"{name}.json"
    return [Row(**entry) for entry in json.loads(file.read_text("utf-8"))] if file.is_file() else []


def _slim(row: Row) -> dict[str, Any]:
    kept = {k: v for k, v in asdict(row).items() if v not in (None, "", {})}
    return {k: _round(v) for k, v in kept.items()}


def _round(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {k: _round(v) for k, v in value.items()}
    return value


_COLUMNS = ("suite", "case", "engine", "unit", "p50", "p90", "p99", "max", "rate", "n", "notes")


def table(rows: Iterable[Row]) -> str:
    """Plain-text table of the rows, aligned for a terminal."""
    cells = [list(_COLUMNS)] + [_cells(row) for row in rows]
    shown = [i for i in range(len(_COLUMNS)) if any(line[i] for line in cells[1:])]
    widths = [max(len(line[i]) for line in cells) for i in range(len(_COLUMNS))]
    left = {"suite", "case", "engine", "unit", "notes"}
    return "\n".join(
        "  ".join(
            line[i].ljust(widths[i]) if _COLUMNS[i] in left else line[i].rjust(widths[i])
            for i in shown
        ).rstrip()
        for line in cells
    )


def _cells(row: Row) -> list[str]:
    figures = [number(v) for v in (row.p50, row.p90, row.p99, row.max, row.rate)]
    extra = [f"{k} {number(v)}" for k, v in row.extra.items()]
    notes = "; ".join([" ".join(x for x in (row.model, row.dtype) if x), *extra, row.note])
    return [
        *(row.suite, row.case, row.engine, row.unit),
        *(*figures, str(row.samples), notes.strip("; ")),
    ]


def number(value: float | int | str | None) -> str:
    """Three significant digits for a measurement; text and counts as they are."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    if 0.9 < value < 1 and f"{value:.3g}" == "1":
        return f"{value:.5f}"
    return f"{value:.3g}"
