"""A program is tried before it serves: one layer of its own model, against plain numpy.

Catches a miscompiled kernel, a CPU that does not do what it says, and weights packed wrongly.
Costs some ten milliseconds.
"""

from __future__ import annotations

import numpy as np

from hedgerow_engine.native.arena import Arena
from hedgerow_engine.native.compiler import Program
from hedgerow_engine.native.crew import crew_bytes
from hedgerow_engine.native.memory import Memory, address
from hedgerow_engine.native.model import PackedModel
from hedgerow_engine.native.program import can_narrow
from hedgerow_engine.native.reference import reference_rows
from hedgerow_engine.native.rungs import Rung
from hedgerow_engine.native.tensors import ModelTensors
from hedgerow_engine.native.words import FRAME, MODEL

# Every tile height, a partly filled vector of keys, more than one tile of rows.
_LENGTHS = (1, 7, 21)
_TOLERANCE = {"bfloat16": 3e-2, "float32": 1e-3}


def self_test(
    program: Program, model: PackedModel, tensors: ModelTensors, rung: Rung, *, threads: int
) -> str | None:
    """None when the program computes its model's first layer, else how far it is off."""
    g = tensors.geometry
    random = np.random.default_rng(0)
    sequences = [random.integers(0, tensors.word.shape[0], n, np.int32) for n in _LENGTHS]
    ids = np.concatenate(sequences)
    cu_seqlens = np.cumsum([0, *_LENGTHS], dtype=np.int32)
    rows = np.zeros((len(_LENGTHS), g.output_width), np.float32)
    unit = np.zeros_like(rows)
    words = model.words.copy()
    MODEL.put(words, num_layers=1)
    arena = Arena(g, rung, threads=threads, max_tokens=len(ids), max_length=max(_LENGTHS))
    FRAME.put(
        arena.frame,
        num_tokens=len(ids),
        num_seqs=len(_LENGTHS),
        num_rows=len(_LENGTHS),
        narrow=int(can_narrow(g, threads, len(ids))),
        ids=address(ids),
        cu_seqlens=address(cu_seqlens),
        pooled=address(rows),
        unit=address(unit),
    )
    # A crew without helpers: the caller takes every task.
    crew = Memory(crew_bytes(threads)).take(crew_bytes(threads))
    program.function("advance", 5)(address(words), address(arena.frame), address(crew), 0, 3)
    expected = reference_rows(tensors, sequences, num_layers=1)
    for length, row, want in zip(_LENGTHS, rows, expected, strict=True):
        off = float(np.linalg.norm(row - want)) / max(1.0, float(np.linalg.norm(want)))
        # Not a number fails this comparison.
        if not off <= _TOLERANCE[rung.dtype]:
            return f"self-test failed: a sequence of {length} tokens is off by {off:.2g}"
    return None
