"""A program is tried before it serves: a layer of each kind its model has, against plain numpy.

Catches a miscompiled kernel, a CPU that does not do what it says, and weights packed wrongly.
Costs some ten milliseconds a kind; most models have one, a few have three.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from hedgerow_engine.native.arena import Arena
from hedgerow_engine.native.compiler import Program
from hedgerow_engine.native.crew import crew_bytes
from hedgerow_engine.native.memory import Memory, address
from hedgerow_engine.native.model import PackedModel
from hedgerow_engine.native.program import can_narrow
from hedgerow_engine.native.reference import TINY, reference_answers
from hedgerow_engine.native.rungs import Rung
from hedgerow_engine.native.schedule import COLUMN_MODE_TOKENS
from hedgerow_engine.native.tensors import EVERYWHERE, Floats, LayerTensors, ModelTensors
from hedgerow_engine.native.words import FRAME, LAYER, MODEL, Words

# Every tile height, a partly filled vector of keys, more than one tile of rows.
_LENGTHS = (1, 7, 21)
# A window that the longest two of these sequences reach past.
_REACH = 5
_TOLERANCE = {"bfloat16": 3e-2, "float32": 1e-3}


def self_test(
    program: Program, model: PackedModel, tensors: ModelTensors, rung: Rung, *, threads: int
) -> str | None:
    """None when the program computes its model's layers, else how far it is off.

    No sequence is longer than the model allows: its tables of positions end there.
    """
    random = np.random.default_rng(0)
    lengths = sorted({min(n, model.max_positions) for n in _LENGTHS})
    sequences = [random.integers(0, tensors.word.shape[0], n, np.int32) for n in lengths]
    for i in model.kinds:
        layer = tensors.layer(i)
        if min(layer.back, layer.ahead) < 0:
            return f"self-test: layer {i} sees {layer.back} tokens back, {layer.ahead} ahead"
        layer = replace(layer, back=_visible(layer.back), ahead=_visible(layer.ahead))
        expected = reference_answers(tensors, sequences, layers=[layer])
        for count in _batches(lengths, threads):
            batch = sequences[:count]
            rows = _run(program, _only(model, i, layer), tensors, rung, batch, threads=threads)
            for length, row, (want, size) in zip(lengths, rows, expected, strict=False):
                off = float(np.linalg.norm(row - want)) / max(size, TINY)
                # Not a number fails this comparison.
                if not off <= _TOLERANCE[rung.dtype]:
                    what = f"a sequence of {length} tokens through layer {i}"
                    return f"self-test failed: {what} is off by {off:.2g}"
    return None


def _batches(lengths: Sequence[int], threads: int) -> list[int]:
    """How many of the sequences run together. Short passes of several threads are split in
    another way, by columns, and so are tried as well."""
    short = sum(np.cumsum(lengths) <= COLUMN_MODE_TOKENS)
    return [len(lengths), int(short)] if threads > 1 and short < len(lengths) else [len(lengths)]


def _visible(reach: int) -> int:
    """How far a row sees in the test: a wide window is made one that shows."""
    return reach if reach >= EVERYWHERE else min(reach, _REACH)


def _only(model: PackedModel, i: int, layer: LayerTensors) -> tuple[Words, Words]:
    """MODEL words of a model that has this one layer, and its LAYER words."""
    block, words = model.layer_words(i), model.words.copy()
    LAYER.put(block, back=layer.back, ahead=layer.ahead)
    MODEL.put(words, layers=address(block), num_layers=1)
    return words, block


def _run(
    program: Program,
    model: tuple[Words, Words],
    tensors: ModelTensors,
    rung: Rung,
    sequences: Sequence[npt.NDArray[np.int32]],
    *,
    threads: int,
) -> Floats:
    """What the program answers, one row a sequence. Both of `model` live through the call."""
    g, count = tensors.geometry, len(sequences)
    ids = np.concatenate(sequences)
    cu_seqlens = np.cumsum([0, *map(len, sequences)], dtype=np.int32)
    rows = np.zeros((count, g.output_width), np.float32)
    unit = np.zeros_like(rows)
    longest = max(map(len, sequences))
    arena = Arena(g, rung, threads=threads, max_tokens=len(ids), max_length=longest)
    FRAME.put(
        arena.frame,
        num_tokens=len(ids),
        num_seqs=count,
        num_rows=count,
        narrow=int(can_narrow(g, threads, len(ids))),
        ids=address(ids),
        cu_seqlens=address(cu_seqlens),
        pooled=address(rows),
        unit=address(unit),
    )
    # A crew without helpers: the caller takes every task.
    crew = Memory(crew_bytes(threads)).take(crew_bytes(threads))
    program.function("advance", 5)(address(model[0]), address(arena.frame), address(crew), 0, 3)
    return rows
