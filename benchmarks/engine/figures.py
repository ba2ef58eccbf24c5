"""From the times of a comparison to the lines of its table."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field

from benchmarks import machine
from benchmarks.engine.cases import Case
from benchmarks.engine.contender import Contender
from benchmarks.harness import say
from benchmarks.models import Shape
from benchmarks.rows import Row, percentiles


@dataclass(slots=True)
class Run:
    """One model's comparison while it goes on."""

    shape: Shape
    contenders: list[Contender]
    floor_gflops: float
    quick: bool
    deadline_s: float = 0.0
    cosine: dict[str, float] = field(default_factory=dict)
    ms_per_token: dict[str, float] = field(default_factory=dict)
    busy: str = field(default_factory=machine.busy_warning)

    @property
    def ours(self) -> str:
        """The engine the ratios are against: native with all threads, else packed."""
        names = [c.name for c in self.contenders if c.name.startswith("hedgerow")]
        return names[0] if names else ""


def line(
    run: Run, case: Case, name: str, engine: str, timed: Mapping[str, list[list[float]]]
) -> Row:
    """One line; `time / ours` is the median over rounds of this engine's time over ours."""
    rounds = timed[engine]
    medians = [statistics.median(times) for times in rounds]
    best = min(medians)
    extra: dict[str, float | int | str] = {"best": best}
    ours = [statistics.median(times) for times in timed.get(run.ours, [])]
    if ours and engine != run.ours:
        extra["time / ours"] = statistics.median(m / o for m, o in zip(medians, ours))
    if run.floor_gflops:
        floor_ms = run.shape.flops(case.lengths) / run.floor_gflops / 1e6
        extra["of floor"] = floor_ms / best
    if engine in run.cosine or "2 workers" in engine:
        extra["min cosine"] = run.cosine.get(engine, run.cosine.get(run.ours, 0.0))
    facts = next((c.facts for c in run.contenders if c.name == engine), {})
    versions = {k: v for k, v in facts.items() if k not in ("dtype", "executor")}
    every = [t for times in rounds for t in times]
    row = Row(
        suite="engine",
        case=name,
        engine=engine,
        unit="ms",
        samples=len(every),
        model=run.shape.name,
        dtype=facts.get("dtype", ""),
        extra=extra,
        note=run.busy,
        versions=machine.versions() | versions,
        **percentiles(every),
    )
    say(f"{run.shape.name}: {name}: {engine}: best {best:.3g} ms")
    return row


def floor(run: Run, case: Case, dtype: str) -> Row:
    """What the arithmetic alone takes at the best rate this machine showed in this run."""
    floor_ms = run.shape.flops(case.lengths) / run.floor_gflops / 1e6 if run.floor_gflops else None
    return Row(
        suite="engine",
        case=case.name,
        engine="GEMM floor",
        unit="ms",
        samples=1,
        p50=floor_ms,
        model=run.shape.name,
        dtype=dtype,
        extra={"GFLOP/s": round(run.floor_gflops)},
        note="all arithmetic of the model at the best rate oneDNN's packed products reach here",
    )


def missing(shape: Shape, case: str, engine: str, why: str) -> Row:
    """The line of an engine that did not run, with the reason."""
    return Row(
        suite="engine", case=case, engine=engine, unit="ms", samples=0, model=shape.name, note=why
    )
