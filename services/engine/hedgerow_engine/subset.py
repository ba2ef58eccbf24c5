"""A batch without some of its sequences, and the answer put together again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hedgerow_shared.errors import HedgerowError, RowError
from hedgerow_shared.ragged import TASKS, RaggedBatch, Row, StepOutput, Task


def heads_of(batch: RaggedBatch) -> tuple[Task, ...]:
    """The tasks that any sequence of the batch wants, in one fixed order."""
    asked = {s.task for s in batch.outputs}
    return tuple(task for task in TASKS if task in asked)


def with_refused(
    output: StepOutput, kept: list[int], refused: dict[int, HedgerowError]
) -> StepOutput:
    """The rows of the sequences that ran, and the errors of those that did not, in order."""
    rows: list[Row] = [refused.get(i, RowError("lost")) for i in range(len(refused) + len(kept))]
    for i, row in zip(kept, output.rows, strict=True):
        rows[i] = row
    return StepOutput(rows)


def without(
    batch: RaggedBatch, refused: dict[int, HedgerowError]
) -> tuple[RaggedBatch | None, list[int]]:
    """The batch less some of its sequences, and the indexes that stay; None when none does."""
    kept = [i for i in range(batch.num_seqs) if i not in refused]
    if not kept:
        return None, kept
    part = RaggedBatch.of([batch.sequence(i) for i in kept])
    place = {old: new for new, old in enumerate(kept)}
    spans = [(place[s], a, b) for s, a, b in batch.spans.tolist() if s in place]
    return (
        replace(
            part,
            outputs=tuple(batch.outputs[i] for i in kept),
            pair_start=batch.pair_start[kept] if batch.pair_start.size else batch.pair_start,
            prompt_len=batch.prompt_len[kept] if batch.prompt_len.size else batch.prompt_len,
            spans=np.asarray(spans, np.int32).reshape(-1, 3),
        ),
        kept,
    )
