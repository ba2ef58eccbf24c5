"""Softmax attention of one sequence and one key head, for all query heads that share it.

    out[i] = sum_j softmax_j(q[i] . k[j]) v[j]      over the keys j that row i may see

Scores come in powers of two: 1/sqrt(head_dim) and log2(e) are folded into the query weights.
Nothing of size length x length is ever stored:

    keys, values of the sequence, packed once (attention_pack)
    for each tile of 8 query rows:                        KEY_BLOCK keys at a time
        scores   8 rows x 2 key vectors in 16 registers   -> float32 strip  [8][KEY_BLOCK]
        weights  2 ** (score - largest so far)            -> acts strip     [8][KEY_BLOCK]
        values   8 rows x 2 vectors of the head           -> out, or a running sum

A sequence of at most KEY_BLOCK tokens needs one turn. A longer one keeps, for each row, the
largest score, the sum of weights and the weighted values so far, and rescales them when a
larger score appears ("online softmax"); queries are taken in blocks, so that packed keys are
read from L2 once per block of rows. What a row sees, and in which order it adds, depends on its
own sequence only.

A row past the end of the sequence is the last row again: same bytes, written twice.
"""

from __future__ import annotations

from collections.abc import Callable

from hedgerow_engine.native.attention_pack import pack_keys, pack_values
from hedgerow_engine.native.attention_tile import (
    KEY_BLOCK,
    AttentionSpec,
    attend_tile,
    state_bytes,
    strips_bytes,
)
from hedgerow_engine.native.ir import Function, Int, Kernel, Ptr, Unit
from hedgerow_engine.native.rungs import Rung

_ROW_TILES_PER_BLOCK = 8


def scratch_bytes(rung: Rung, head_dim: int, length: int) -> int:
    """Scratch one call needs for a sequence of `length` tokens."""
    padded = -(-length // rung.lanes) * rung.lanes
    packed = 2 * padded * head_dim * rung.act_bytes
    return packed + strips_bytes(rung) + _ROW_TILES_PER_BLOCK * state_bytes(rung, head_dim)


def attention(unit: Unit, spec: AttentionSpec) -> Function:
    """Pointers q, k, v, out, bias (null where the spec has none), scratch; integers length (of
    k and v), count (rows of q and out), skipped (rows of the sequence before the first of q),
    row_step (bytes from row to row of q, k and v), out_step, back, ahead, bias_step (from head
    to head). q, out and bias are those of the first query head; the others lie beside it.
    scratch is 64-byte aligned, `scratch_bytes` long."""
    return unit.once("attention", lambda: _attention(unit, spec))


def _attention(unit: Unit, spec: AttentionSpec) -> Function:
    rung = unit.rung
    packers = pack_keys(unit, spec.head_dim), pack_values(unit, spec.head_dim)
    tiles = {online: attend_tile(unit, spec, online=online) for online in (False, True)}
    k = unit.kernel("attention", ptrs=6, ints=8)
    q, keys, values, out, bias, scratch = k.ptrs
    length, count, skipped, row_step, out_step, back, ahead, bias_step = k.ints
    packed_bytes = length.up_to(rung.lanes) * (spec.head_dim * rung.act_bytes)
    packed_keys, packed_values = scratch, scratch + packed_bytes
    strips = packed_values + packed_bytes
    packers[0](k, [keys, packed_keys], [length, row_step])
    packers[1](k, [values, packed_values], [length, row_step])

    def tile(online: bool, head: Int, row: Int, key: Int | int, state: Ptr) -> None:
        offset = head * (spec.head_dim * rung.act_bytes)
        here = bias + head * bias_step
        ptrs = [q + offset, packed_keys, packed_values, out + offset, here, strips, state]
        ints = [length, count, skipped, row_step, out_step, back, ahead, row, k.int(key)]
        tiles[online](k, ptrs, ints)

    fits = length <= KEY_BLOCK
    with k.loop(0, spec.query_heads) as head:
        with k.when(fits), k.loop(0, count, rung.rows) as row:
            tile(False, head.index, row.index, 0, strips)
        with k.when(~fits):
            _long_sequence(
                k, spec, strips, (length, count), lambda *args: tile(True, head.index, *args)
            )
    return k.done()


def _long_sequence(
    k: Kernel,
    spec: AttentionSpec,
    strips: Ptr,
    size: tuple[Int, Int],
    tile: Callable[[Int, Int, Ptr], None],
) -> None:
    """Blocks of query rows; for each, all key blocks; for each, the block's row tiles."""
    rung, (length, count) = k.rung, size
    states, tile_state = strips + strips_bytes(rung), state_bytes(rung, spec.head_dim)
    block_rows = rung.rows * _ROW_TILES_PER_BLOCK
    with k.loop(0, count, block_rows) as block, k.loop(0, length, KEY_BLOCK) as key:
        end = (block.index + block_rows).at_most(count)
        with k.loop(block.index, end, rung.rows) as row:
            number = (row.index - block.index) // rung.rows
            tile(row.index, key.index, states + number * tile_state)
