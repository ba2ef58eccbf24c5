"""The first step of a model: rows of the embedding tables, summed into the residual stream.

    x[t] = word[input_ids[t]] * scale + position[p(t)]

`p(t)` is t's place in its sequence. A model with token types has two position tables after
each other, each already summed with its type's vector, and tokens from `pair_start` on take
theirs from the second. The word table is read as it lies in the model's file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hedgerow_engine.native.ir import Function, Unit
from hedgerow_engine.native.values import BFLOAT, F16, F32

TableKind = Literal["F32", "F16", "BF16"]
_IR_TYPES = {"F32": (F32, 4), "F16": (F16, 2), "BF16": (BFLOAT, 2)}


@dataclass(frozen=True, slots=True)
class EmbedSpec:
    """positions: rows of one position table; 0 = no learned positions. typed: two tables."""

    width: int
    table: TableKind
    positions: int = 0
    typed: bool = False
    scale: float = 1.0


def embed_sequence(unit: Unit, spec: EmbedSpec) -> Function:
    """Pointers ids, word, position, x; integers length and pair_start (or 0).
    `ids` and `x` are those of the sequence's first token. Writes float32 [length, width]."""
    return unit.once("embed", lambda: _embed(unit, spec))


def _embed(unit: Unit, spec: EmbedSpec) -> Function:
    k = unit.kernel("embed", ptrs=4, ints=2)
    ids, word, position, x = k.ptrs
    length, pair_start = k.ints
    kind, item_bytes = _IR_TYPES[spec.table]
    never = k.int(1 << 40)
    second_text = k.choose(pair_start > 0, pair_start, never)
    with k.loop(0, length) as token:
        place = token.index
        if spec.typed:
            place = place + k.choose(place < second_text, k.int(0), k.int(spec.positions))
        word_row = word + k.load_int32(ids + token.index * 4) * (spec.width * item_bytes)
        position_row, x_row = position + place * (spec.width * 4), x + token.index * spec.width * 4
        with k.loop(0, spec.width, k.rung.lanes) as col:
            value = k.load_as(word_row + col.index * item_bytes, kind)
            if spec.scale != 1.0:
                value = value * spec.scale
            if spec.positions:
                value = value + k.load(position_row + col.index * 4)
            k.store(value, x_row + col.index * 4)
    return k.done()
