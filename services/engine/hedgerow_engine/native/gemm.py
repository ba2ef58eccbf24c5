"""Matrix product with a fused epilogue: c[rows, n] = epilogue(a[rows, k] @ w[n, k].T + bias).

The register tile, here 8 rows by 2 vectors of 16 columns (AVX-512):

                   w block, packed: one step = 2 vectors of 16 groups
                   +----------------+----------------+
                   |  columns 0-15  |  columns 16-31 |
                   +----------------+----------------+
    a  row 0  [g] -> sum 0,0        | sum 0,1          each [g] is one group (two bfloat16 or
       row 1  [g] -> sum 1,0        | sum 1,1          one float32 along k) spread to all lanes
       ...                          |
       row 7  [g] -> sum 7,0        | sum 7,1          sums start as the bias and never leave
                                                       their registers until the epilogue

One step of the inner loop advances one group along k: `vectors` loads of weights, `rows` spread
loads, `rows * vectors` multiplies. A row's sum is taken over k in one fixed order whatever the
number of rows in the tile, so the bytes of a row do not depend on its neighbours.

Around the tile:  for each panel of column blocks (256 KiB of weights: they stay in L2)
                      for each tile of rows (its 8 rows of `a` stay in L1)
                          for each column block of the panel

so that weights come from memory as one long stream, read by the first tile of rows.

Packed weights: [n / columns][k / group][vectors][lanes] groups of four bytes (`packing`).
n is a multiple of the rung's `columns`, k of `UNROLL * group`.
"""

from __future__ import annotations

from hedgerow_engine.native.epilogue import Epilogue
from hedgerow_engine.native.ir import Function, Int, Kernel, Ptr, Real, Unit
from hedgerow_engine.native.rungs import GROUP_BYTES

UNROLL = 2
PANEL_BYTES = 256 << 10


def gemm(unit: Unit, epilogue: Epilogue) -> Function:
    """Pointers a, w, bias, c, r; integers rows, groups, first and last block, and the bytes
    from row to row of a, c and r. Only column blocks [first, last) are computed."""
    return unit.once(f"gemm_{epilogue.name}", lambda: _gemm(unit, epilogue))


def _gemm(unit: Unit, epilogue: Epilogue) -> Function:
    rung = unit.rung
    tiles = [_tile(unit, epilogue, rows) for rows in range(1, rung.rows + 1)]
    k = unit.kernel(f"gemm_{epilogue.name}", ptrs=5, ints=7)
    a, w, bias, c, r = k.ptrs
    rows, groups, first, last, a_step, c_step, r_step = k.ints
    # Rows are cut into as few tiles as possible, of nearly equal height: 17 rows are 6 + 6 + 5.
    num_tiles = (rows + (rung.rows - 1)) // rung.rows
    height = rows // num_tiles
    taller = rows - height * num_tiles
    block_bytes = groups * (rung.vectors * rung.vector_bytes)
    panel = (k.int(PANEL_BYTES) // block_bytes).at_least(1)
    with k.loop(0, (last - first + panel - 1) // panel) as turn:
        block = first + turn.index * panel
        count = (last - block).at_most(panel)
        w_panel, bias_panel = w + block * block_bytes, bias + block * rung.columns * 4
        c_panel, r_panel = c + block * epilogue.step_bytes(rung), r + block * rung.columns * 4
        with k.loop(0, num_tiles) as tile:
            row = tile.index * height + tile.index.at_most(taller)
            k.dispatch(
                k.choose(tile.index < taller, height + 1, height),
                tiles,
                (
                    a + row * a_step,
                    w_panel,
                    bias_panel,
                    c_panel + row * c_step,
                    r_panel + row * r_step,
                ),
                (groups, count, a_step, c_step, r_step),
            )
    return k.done()


def _tile(unit: Unit, epilogue: Epilogue, rows: int) -> Function:
    """`rows` rows against `count` column blocks, one register tile after the other."""
    rung = unit.rung
    k = unit.kernel(f"tile_{epilogue.name}_{rows}", ptrs=5, ints=5)
    a, w, bias, c, r = k.ptrs
    groups, count, a_step, c_step, r_step = k.ints
    a_rows = [a + a_step * i for i in range(rows)]
    block_bytes = groups * (rung.vectors * rung.vector_bytes)
    with k.loop(0, count) as block:
        bias_block = bias + block.index * rung.columns * 4
        start = [k.load(bias_block + v * rung.vector_bytes) for v in range(rung.vectors)] * rows
        sums = _multiply(k, a_rows, w + block.index * block_bytes, groups, start)
        c_block = c + block.index * epilogue.step_bytes(rung)
        r_block = r + block.index * rung.columns * 4
        for i in range(rows):
            row_sums = sums[i * rung.vectors : (i + 1) * rung.vectors]
            epilogue.emit(k, row_sums, c_block + c_step * i, r_block + r_step * i)
    return k.done()


def _multiply(k: Kernel, a_rows: list[Ptr], w: Ptr, groups: Int, start: list[Real]) -> list[Real]:
    """The register tile: `start` plus the products of all rows and one column block."""
    rung = k.rung
    step_bytes = rung.vectors * rung.vector_bytes
    with k.loop(0, groups, UNROLL, carry=start) as loop:
        sums = list(loop.values)
        here, w_here = loop.index * GROUP_BYTES, w + loop.index * step_bytes
        for u in range(UNROLL):
            at = w_here + u * step_bytes
            weights = [k.load_operand(at + v * rung.vector_bytes) for v in range(rung.vectors)]
            for i, a_row in enumerate(a_rows):
                group = k.spread_group(a_row + here + u * GROUP_BYTES)
                for v, weight in enumerate(weights):
                    sums[i * rung.vectors + v] = k.dot(sums[i * rung.vectors + v], group, weight)
        loop.feed(sums)
    return loop.values
