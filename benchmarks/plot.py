"""A picture of the suites' rows; needs matplotlib, and says so where it is missing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.machine import RESULTS, machine_line
from benchmarks.rows import Row

_SHADES = {"p50": "#2f6f4f", "p90": "#6aa84f", "p99": "#b6d7a8"}


def draw(rows: Sequence[Row], *, quick: bool) -> str:
    """Write one PNG with a panel per suite. Returns its path, or why there is none."""
    try:
        import matplotlib as mpl
    except ImportError:
        return "none: pip install matplotlib"
    mpl.use("Agg")
    from matplotlib import pyplot

    suites = list(dict.fromkeys(row.suite for row in rows))
    if not suites:
        return "none: nothing was measured"
    figure, axes = pyplot.subplots(len(suites), 1, figsize=(9, 2.6 * len(suites)), squeeze=False)
    for panel, suite in zip(axes[:, 0], suites, strict=True):
        _panel(panel, [row for row in rows if row.suite == suite])
    figure.suptitle(f"Hedgerow on {machine_line()}", fontsize=9)
    figure.tight_layout()
    folder = RESULTS / "tmp" if quick else RESULTS
    file = folder / "suites.png"
    figure.savefig(file, dpi=110)
    pyplot.close(figure)
    return str(file)


def _panel(panel: Any, rows: Sequence[Row]) -> None:
    """Latency rows as p50/p90/p99 bars on a log scale, rates as plain bars."""
    timed = [row for row in rows if row.p50 is not None]
    shown = timed or [row for row in rows if row.rate is not None]
    names = [row.case for row in shown]
    if timed:
        for name, shade in reversed(_SHADES.items()):
            panel.barh(names, [getattr(row, name) for row in shown], color=shade, label=name)
        panel.set_xscale("log")
        panel.legend(fontsize=7, loc="lower right")
    else:
        panel.barh(names, [row.rate for row in shown], color=_SHADES["p50"])
    panel.set_title(rows[0].suite, fontsize=9, loc="left")
    panel.set_xlabel(shown[0].unit if shown else "", fontsize=8)
    panel.tick_params(labelsize=7)
    panel.invert_yaxis()
