"""The first step of a model: rows of the embedding tables, summed into the residual stream.

    x[t] = word[input_ids[t]] * scale + table[p(t)]

`table` holds what else is known of a token: a row per learned position, per token type, or both
(the positions with the first type's row added, then the same with the second's; tokens from
`pair_start` on are of the second type). Word rows are read as they lie in the model's file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from hedgerow_engine.native.ir import Function, Unit
from hedgerow_engine.native.values import BFLOAT, F16, F32, ir

TableKind = Literal["F32", "F16", "BF16"]
IR_TYPES: Mapping[TableKind, tuple[ir.Type, int]] = {
    "F32": (F32, 4),
    "F16": (F16, 2),
    "BF16": (BFLOAT, 2),
}


@dataclass(frozen=True, slots=True)
class EmbedSpec:
    """positions: learned positions, 0 = none. types: token types told apart, at most 2."""

    width: int
    words: TableKind
    positions: int = 0
    types: int = 0
    scale: float = 1.0

    @property
    def table_rows(self) -> int:
        return max(self.positions, 1) * max(self.types, 1) if self.positions or self.types else 0


def embed_sequence(unit: Unit, spec: EmbedSpec) -> Function:
    """Pointers ids, word, table, x; integers length and pair_start (or 0).
    `ids` and `x` are those of the sequence's first token. Writes float32 [length, width]."""
    return unit.once("embed", lambda: _embed(unit, spec))


def _embed(unit: Unit, spec: EmbedSpec) -> Function:
    k = unit.kernel("embed", ptrs=4, ints=2)
    ids, word, table, x = k.ptrs
    length, pair_start = k.ints
    kind, item_bytes = IR_TYPES[spec.words]
    never = k.int(1 << 40)
    second_text = k.choose(pair_start > 0, pair_start, never)
    with k.loop(0, length) as token:
        place = token.index if spec.positions else k.int(0)
        if spec.types > 1:
            rows_of_type = k.int(max(spec.positions, 1))
            place = place + k.choose(token.index < second_text, k.int(0), rows_of_type)
        word_row = word + k.load_int32(ids + token.index * 4) * (spec.width * item_bytes)
        table_row, x_row = table + place * (spec.width * 4), x + token.index * spec.width * 4
        with k.loop(0, spec.width, k.rung.lanes) as col:
            value = k.load_as(word_row + col.index * item_bytes, kind)
            if spec.scale != 1.0:
                value = value * spec.scale
            if spec.table_rows:
                value = value + k.load(table_row + col.index * 4)
            k.store(value, x_row + col.index * 4)
    return k.done()
