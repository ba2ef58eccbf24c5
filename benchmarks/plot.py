"""A picture of the suites' rows; needs matplotlib, and says so where it is missing."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap
from typing import Any

from benchmarks.machine import RESULTS, machine_line
from benchmarks.rows import Row

_SHADES = {"p50": "#2f6f4f", "p90": "#7ab05f", "p99": "#e0a030", "max": "#b04030"}


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
    heights = [1.2 + 0.35 * sum(row.suite == suite for row in rows) for suite in suites]
    figure, axes = pyplot.subplots(
        len(suites), 1, figsize=(9, sum(heights)), squeeze=False, height_ratios=heights
    )
    for panel, suite in zip(axes[:, 0], suites, strict=True):
        _panel(panel, [row for row in rows if row.suite == suite])
    figure.suptitle(f"Hedgerow on {machine_line()}", fontsize=9)
    figure.tight_layout(rect=(0, 0, 1, 0.985))
    folder = RESULTS / "tmp" if quick else RESULTS
    file = folder / "suites.png"
    figure.savefig(file, dpi=110)
    pyplot.close(figure)
    return str(file)


def _panel(panel: Any, rows: Sequence[Row]) -> None:
    """Latency rows as p50, p90, p99 and max on a log scale (dots: a bar would have no foot
    there), rates as bars from zero."""
    timed = [row for row in rows if row.p50 is not None]
    shown = timed or [row for row in rows if row.rate is not None]
    places = range(len(shown))
    if timed:
        _dots(panel, shown)
    else:
        panel.barh(places, [row.rate for row in shown], color=_SHADES["p50"], height=0.5)
    panel.set_yticks(places, ["\n".join(wrap(row.case, 34)) for row in shown])
    panel.set_title(rows[0].suite, fontsize=9, loc="left")
    panel.set_xlabel(shown[0].unit if shown else "", fontsize=8)
    panel.tick_params(labelsize=7, which="both")
    panel.set_ylim(len(shown) - 0.5, -0.5)


def _dots(panel: Any, rows: Sequence[Row]) -> None:
    from matplotlib.ticker import LogFormatter

    panel.hlines(range(len(rows)), [r.p50 for r in rows], [r.max for r in rows], color="#999999")
    for name, shade in _SHADES.items():
        values = [getattr(row, name) for row in rows]
        panel.plot(values, range(len(rows)), "o", color=shade, markersize=6, label=name)
    panel.set_xscale("log")
    for axis_formatter in (panel.xaxis.set_major_formatter, panel.xaxis.set_minor_formatter):
        axis_formatter(LogFormatter(minor_thresholds=(1.5, 0.5)))
    panel.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.0, 1.0))
