"""What every suite is given: the server, inputs of any length, and how long it may take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import machine, models
from benchmarks.harness import Limits, check_vectors, say
from benchmarks.reference import reference_vectors
from benchmarks.rows import Row
from benchmarks.target import Input, Target
from benchmarks.text import Pool

MINILM, LONG = "minilm", "long"
LENGTHS: Mapping[str, int] = {MINILM: 512, LONG: 4096}
"""`--max-seq-len` of each alias; the oracle is always set to the same."""


def model_for(length: int) -> str:
    """MiniLM as far as its positions go; past them a random model of its shape."""
    return MINILM if length <= LENGTHS[MINILM] else LONG


def folders(*, long: bool = True) -> dict[str, Path]:
    """alias -> folder of the models the suites run on."""
    wanted = {MINILM: models.MINILM, LONG: models.LONG} if long else {MINILM: models.MINILM}
    return {alias: models.folder(shape) for alias, shape in wanted.items()}


@dataclass(slots=True, kw_only=True)
class Bench:
    """One run of suites against one server."""

    target: Target
    pool: Pool
    quick: bool
    dtype: str = ""
    suite_prefix: str = ""
    versions: Mapping[str, str] = field(default_factory=machine.versions)
    busy: str = field(default_factory=machine.busy_warning)

    def inputs(self, length: int, count: int, *, seed: int = 0) -> list[Input]:
        """`count` different inputs of `length` tokens: ids where the server takes them."""
        if self.target.takes_ids:
            return list(self.pool.ids(length, count, seed=seed))
        return list(self.pool.texts(length, count, seed=seed))

    def limits(self, samples: int, seconds: float, *, warm_up: int = 5) -> Limits:
        """Limits of a full run; a quick one takes about a tenth of both."""
        if not self.quick:
            return Limits(samples, seconds, warm_up)
        return Limits(max(3, samples // 10), max(1.0, seconds / 10), min(warm_up, 2))

    def row(self, suite: str, case: str, unit: str, samples: int, **figures: Any) -> Row:
        """A Row of this server; `note` is joined with what is known about the run."""
        notes = [figures.pop("note", ""), self.busy, "quick" if self.quick else ""]
        given: dict[str, Any] = {
            "engine": self.target.name,
            "dtype": self.dtype,
            "versions": self.versions,
            **figures,
        }
        row = Row(
            suite=self.suite_prefix + suite,
            case=case,
            unit=unit,
            samples=samples,
            note="; ".join(n for n in notes if n),
            **given,
        )
        say(f"{row.suite}: {case}: {_headline(row)}")
        return row


def _headline(row: Row) -> str:
    if row.rate is not None:
        return f"{row.rate:.4g} {row.unit} ({row.samples} samples)"
    return f"p50 {row.p50:.4g} p99 {row.p99:.4g} {row.unit} ({row.samples} samples)"


def references(pool: Pool, where: Mapping[str, Path], *, quick: bool) -> dict[str, Any]:
    """alias -> (token ids, their vectors by the oracle), to be checked in the warm-up."""
    longest = 1024 if quick else 4096
    wanted = {MINILM: (16, 16, 128, 512), LONG: (16, 128, longest)}
    ids = {
        alias: [pool.ids(length, 1, seed=100 + i)[0] for i, length in enumerate(wanted[alias])]
        for alias in where
    }
    say("reference vectors by sentence-transformers (fp32)")
    found = reference_vectors([(where[alias], ids[alias]) for alias in where])
    return {alias: (ids[alias], vectors) for alias, vectors in zip(where, found, strict=True)}


def warm_up(bench: Bench, oracle: Mapping[str, Any]) -> dict[str, float]:
    """Ask each model for what the oracle answered. Returns the smallest cosine per alias.

    Raises WrongVectorsError past 0.1 %: a fast wrong answer is not measured.
    """
    lowest: dict[str, float] = {}
    for alias, (ids, expected) in oracle.items():
        got = bench.target.embed(alias, ids)
        lowest[alias] = check_vectors(f"{bench.target.name}: {alias}", got, expected)
        say(f"warm-up: {alias}: min cosine {lowest[alias]:.5f} over {len(ids)} inputs")
    return lowest
