"""The workloads of the engine comparison, and how long each may take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.models import BERT_BASE, MINILM, QWEN3, Shape
from benchmarks.reference import save_ragged
from benchmarks.text import Pool

Sequences = list[npt.NDArray[np.int32]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One workload. A round times each engine in turn: `seconds`, at least `at_least` passes.

    gaps_ms: idle time before each call; a server's engine is rarely called back to back
    pair: also run it on two one-thread engines at once, half of the sequences each
    """

    name: str
    sequences: Sequences
    rounds: int = 3
    seconds: float = 0.5
    at_least: int = 3
    warm_up: int = 2
    gaps_ms: tuple[float, ...] = (0.0,)
    pair: bool = False

    @property
    def lengths(self) -> list[int]:
        return [len(s) for s in self.sequences]

    @property
    def is_cheap(self) -> bool:
        """One sequence: a round of it is over within a second or two."""
        return len(self.sequences) == 1

    def save(self, folder: Path) -> str:
        """Write the sequences where the engines' processes read them."""
        file = folder / f"{self.name.replace(' ', '-')}.npz"
        save_ragged(file, self.sequences)
        return str(file)


def ragged_lengths(count: int) -> list[int]:
    """Log-normal lengths clipped to 8..512: median about 65, a tail of long ones."""
    rng = np.random.default_rng(11)
    return [int(n) for n in np.clip(np.exp(rng.normal(4.2, 0.9, count)), 8, 512)]


def ragged(pool: Pool, count: int) -> Sequences:
    return [pool.ids(n, 1, seed=500 + i)[0] for i, n in enumerate(ragged_lengths(count))]


def _one(pool: Pool, length: int, **options: object) -> Case:
    sequences = pool.ids(length, 1, seed=length)
    return Case(name=f"1x{length}", sequences=sequences, **options)  # pyright: ignore


def _many(pool: Pool, count: int, length: int, rounds: int, *, pair: bool = False) -> Case:
    return Case(
        name=f"{count}x{length}",
        sequences=pool.ids(length, count, seed=count),
        rounds=rounds,
        at_least=1,
        warm_up=0 if count * length > 10_000 else 1,
        pair=pair,
    )


def cases_of(shape: Shape, pool: Pool, *, quick: bool) -> Sequence[Case]:
    """The cases of one model, the cheap ones first: they warm the engines up for the rest.

    Larger models get fewer sequences in the big cases, and the case's name says how many.
    """
    gaps = (0.0, 2.0, 20.0)
    if quick:
        one = {"rounds": 1, "seconds": 0.3}
        return [_one(pool, 16, gaps_ms=(0.0, 2.0), **one), _one(pool, 128, **one)]
    singles = [
        _one(pool, 8),
        _one(pool, 16, gaps_ms=gaps),
        _one(pool, 128, gaps_ms=gaps if shape is MINILM else (0.0,)),
        _one(pool, 512),
    ]
    if shape is MINILM:
        all_of_it = ragged(pool, 128)
        mixed = Case(
            name="ragged 128", sequences=all_of_it, rounds=2, at_least=1, warm_up=0, pair=True
        )
        return [*singles, _many(pool, 32, 128, 3), _many(pool, 100, 512, 2, pair=True), mixed]
    if shape is BERT_BASE:
        few = Case(name="ragged 32", sequences=ragged(pool, 32), rounds=1, at_least=1, warm_up=0)
        return [*singles, _many(pool, 32, 128, 2), _many(pool, 16, 512, 1), few]
    assert shape is QWEN3
    return [*singles, _many(pool, 8, 128, 1), _many(pool, 4, 512, 1)]
