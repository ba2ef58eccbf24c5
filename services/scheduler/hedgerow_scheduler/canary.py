"""Vectors of known inputs: what a worker shows before it may join a fleet.

A fingerprint says that two workers were started from the same weights, in the same numbers. Their
canaries say that the same comes out. See docs/decisions/0140.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from hedgerow_scheduler.ports import Engine
from hedgerow_shared.errors import HedgerowError, StartupError
from hedgerow_shared.modelcard import ModelCard
from hedgerow_shared.ragged import Lane, OutputSpec, RaggedBatch, Row, Task

Rows = npt.NDArray[np.float32]

LENGTHS = (1, 5, 33, 130)
"""Tokens of each known input: one, a few, more than a tile, more than a block of attention."""

_STRIDE = 7919
GATES: Mapping[str, float] = {"float32": 0.9999}
_GATE_ROUNDED, _GATE_SCORES = 0.999, 0.95


@dataclass(frozen=True, slots=True)
class Canary:
    """What one model of this worker makes of the known inputs.

    rows: float32 [len(LENGTHS), width], vectors or logits
    gate: how like another worker's rows they must be, see `likeness`
    """

    task: Task
    rows: Rows
    gate: float

    @property
    def digest(self) -> str:
        """12 hex digits; equal where every byte is."""
        return hashlib.sha256(self.rows.astype("<f4").tobytes()).hexdigest()[:12]

    def likeness(self, other: Rows) -> float:
        """1.0 for the same. Vectors: their lowest cosine. Logits, where a single number has no
        direction: 1 less their largest difference against 1 + their size. 0 for other shapes."""
        if other.shape != self.rows.shape:
            return 0.0
        a, b = self.rows.astype(np.float64), other.astype(np.float64)
        if self.task != "embed":
            return float(1 - np.max(np.abs(a - b) / (1 + np.abs(a))))
        lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
        return float(np.min((a * b).sum(1) / np.maximum(lengths, 1e-30)))


def known_inputs(vocab_size: int, max_seq_len: int, output: OutputSpec) -> RaggedBatch:
    """The same ids wherever a model of this vocabulary and length is served."""
    return RaggedBatch.of(
        [
            [(row + 1 + i * _STRIDE) % vocab_size for i in range(min(length, max_seq_len))]
            for row, length in enumerate(LENGTHS)
        ],
        output,
    )


def task_of(card: ModelCard) -> Literal["embed", "score", "classify"]:
    """What a model is for."""
    if not card.is_scorer:
        return "embed"
    return "score" if card.num_labels == 1 else "classify"


def canaries(engines: Mapping[str, Engine]) -> dict[str, Canary]:
    """Of every model, by alias; blocks. Raises StartupError (one line)."""
    return {alias: canary_of(alias, engine) for alias, engine in engines.items()}


def canary_of(alias: str, engine: Engine) -> Canary:
    """Run the known inputs; blocks. Raises StartupError when no numbers come out."""
    card, task = engine.card, task_of(engine.card)
    batch = known_inputs(card.vocab_size, engine.max_seq_len, OutputSpec(task))
    lazy = engine.step(batch, Lane.QUERY)
    try:
        rows = np.stack([_numbers(row) for row in lazy.result().rows])
    except HedgerowError as error:
        raise StartupError(f"model {alias} fails on known inputs: {error}") from None
    lazy.release()
    if not np.isfinite(rows).all():
        raise StartupError(
            f"model {alias} does not give numbers for known inputs: its weights are damaged, or "
            f"{engine.dtype} is too small for them (try --dtype float32)"
        )
    gate = GATES.get(engine.dtype, _GATE_ROUNDED) if task == "embed" else _GATE_SCORES
    return Canary(task, rows, gate)


def _numbers(row: Row) -> Rows:
    if isinstance(row, HedgerowError):
        raise row
    return np.array(row[0], np.float32)
