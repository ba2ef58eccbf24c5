"""README's benchmark section, rendered from the results files between two markers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.machine import RESULTS, ROOT
from benchmarks.rows import Row, number, read

START, END = "<!-- bench:start -->", "<!-- bench:end -->"
SUITES = ("overhead", "latency", "scoring", "throughput", "concurrency", "reindex")


def update_readme(readme: Path = ROOT / "README.md", results: Path = RESULTS) -> bool:
    """Replace what stands between the markers. Returns whether anything changed.

    Raises RuntimeError when the file has not exactly one pair of markers.
    """
    text = readme.read_text("utf-8")
    before, start, rest = text.partition(START)
    _, end, after = rest.partition(END)
    if not start or not end or START in after:
        raise RuntimeError(f"{readme.name} needs one {START} and one {END} after it")
    fresh = f"{before}{START}\n{render(results)}{END}{after}"
    if fresh == text:
        return False
    readme.write_text(fresh, "utf-8")
    return True


def render(results: Path = RESULTS) -> str:
    """Markdown of every results file there is, each under the machine it was measured on."""
    suites = [row for name in SUITES for row in read(name, results)]
    parts = [
        _section("The system", suites, _suite_table),
        _section("Retrieval", read("retrieval", results), _suite_table),
        _section("Engines side by side", read("engine", results), _engine_tables),
        _section("Servers side by side", read("servers", results), _suite_table),
        _section("Installed with torch and without", read("footprint", results), _pairs),
        _section(
            "Queries beside large requests, fake engine", read("large", results), _suite_table
        ),
        _section("Scaling, fake engine", read("scaling", results), _suite_table),
    ]
    found = [part for part in parts if part]
    if not found:
        return "\nNothing was measured yet: `make bench`.\n\n"
    return "\n" + "\n".join(found) + "\nOn GPUs: not measured.\n\n"


def _section(title: str, rows: Sequence[Row], table: Callable[[Sequence[Row]], str]) -> str:
    if not rows:
        return ""
    machines = "; and on ".join(dict.fromkeys(row.machine for row in rows))
    return f"**{title}.** Measured on {machines}; {_versions(rows)}.\n\n{table(rows)}"


def _versions(rows: Sequence[Row]) -> str:
    found: dict[str, list[str]] = {}
    for row in rows:
        for name, version in row.versions.items():
            if version not in found.setdefault(name, []):
                found[name].append(version)
    return ", ".join(f"{name} {' and '.join(several)}" for name, several in found.items())


def _suite_table(rows: Sequence[Row]) -> str:
    """One line per row. Percentiles in milliseconds, rates in the unit they name."""
    head = "| suite | case | who | p50 | p90 | p99 | max | rate | samples | |\n"
    head += "|---|---|---|---|---|---|---|---|---|---|\n"
    return head + "".join(_suite_line(row) for row in rows)


def _pairs(rows: Sequence[Row]) -> str:
    """One line per figure, one column per way."""
    ways = list(dict.fromkeys(row.engine for row in rows))
    cell = {(row.case, row.engine): f"{number(row.rate)} {row.unit}" for row in rows}
    lines = ["| | " + " | ".join(ways) + " |\n", "|---" * (len(ways) + 1) + "|\n"]
    lines += [
        f"| {case} | " + " | ".join(cell.get((case, way), "") for way in ways) + " |\n"
        for case in dict.fromkeys(row.case for row in rows)
    ]
    notes = dict.fromkeys(f"{row.case}, {row.engine}: {row.note}" for row in rows if row.note)
    return "".join(lines) + "\n" + "; ".join(notes) + ".\n"


def _suite_line(row: Row) -> str:
    rate = f"{number(row.rate)} {row.unit}" if row.rate is not None else ""
    times = [number(v) for v in (row.p50, row.p90, row.p99, row.max)]
    who = " ".join(x for x in (row.engine, row.model, row.dtype) if x)
    cells = [row.suite, row.case, who, *times, rate, str(row.samples), _remarks(row)]
    return "| " + " | ".join(cells) + " |\n"


def _remarks(row: Row) -> str:
    extra = [f"{name} {number(value)}" for name, value in row.extra.items()]
    return "; ".join([*extra, *([row.note] if row.note else [])])


def _engine_tables(rows: Sequence[Row]) -> str:
    """For each model a grid: engines down, cases across, best milliseconds in the cells."""
    return "\n".join(_grid(name, rows) for name in dict.fromkeys(row.model for row in rows))


def _grid(model: str, rows: Sequence[Row]) -> str:
    mine = [row for row in rows if row.model == model and row.samples]
    cases = list(dict.fromkeys(row.case for row in mine if row.unit == "ms"))
    engines = list(dict.fromkeys(row.engine for row in mine if row.unit == "ms"))
    cell = {(row.engine, row.case): row for row in mine}
    lines = [
        f"{model}, best milliseconds (of the floor's speed); in brackets the min cosine\n\n",
        "| | " + " | ".join(cases) + " |\n",
        "|---" * (len(cases) + 1) + "|\n",
    ]
    for engine in engines:
        row = next(r for r in mine if r.engine == engine)
        cosine = row.extra.get("min cosine")
        name = engine + (f" ({number(cosine)})" if cosine is not None else "")
        lines.append(
            f"| {name} | " + " | ".join(_best(cell.get((engine, c))) for c in cases) + " |\n"
        )
    absent = {r.engine: r.note for r in rows if r.model == model and not r.samples}
    lines += [f"\n{engine}: {note}\n" for engine, note in absent.items() if engine not in engines]
    return "".join(lines)


def _best(row: Row | None) -> str:
    if row is None:
        return ""
    best = row.extra.get("best", row.p50)
    share = row.extra.get("of floor")
    return number(best) + (f" ({float(share):.0%})" if share is not None else "")
