"""The steps of one transformer layer, each for some rows and some column blocks of a pass.

    x       [tokens][hidden]   float32, the residual stream
    acts    [tokens][hidden]   what products read: x after a norm
    qkv     [tokens][queries, keys, values]
    context [tokens][heads]    what attention gives
    sums    [128][hidden]      float32, per thread: a product and residual before its norm
    inner   [128][intermediate]  per thread: inside the MLP

In which order and by whom steps run is `schedule`'s.
"""

from __future__ import annotations

from hedgerow_engine.native.attention import attention
from hedgerow_engine.native.epilogue import (
    Epilogue,
    activate,
    add_residual,
    gate,
    store,
    store_wide,
)
from hedgerow_engine.native.gemm import gemm
from hedgerow_engine.native.geometry import Geometry
from hedgerow_engine.native.ir import Function, Int, Kernel, Ptr
from hedgerow_engine.native.norms import norm_rows
from hedgerow_engine.native.rotary import rotate_rows
from hedgerow_engine.native.words import FRAME, LAYER

ROW_BLOCK = 128

Columns = tuple[Int, Int]
"""Column blocks [begin, end) of a product."""
Rows = tuple[Ptr, int]
"""The first row and the bytes from row to row."""


class Layer:
    """A layer being written into kernel `k`; `block` is its LAYER block."""

    def __init__(self, k: Kernel, g: Geometry, frame: Ptr, block: Ptr, local: Ptr) -> None:
        self.k, self.g, self.frame, self.block = k, g, frame, block
        act = k.rung.act_bytes
        self.x, self.acts, self.qkv, self.context = (
            FRAME.ptr(k, frame, name) for name in ("x", "acts", "qkv", "context")
        )
        self.x_step, self.acts_step = g.hidden * 4, g.hidden * act
        self.qkv_step, self.context_step = g.qkv_width * act, g.context_width * act
        self.inner_step = g.intermediate * act
        self.sums, self.inner = local, local + ROW_BLOCK * self.x_step

    @classmethod
    def local_bytes(cls, g: Geometry, act_bytes: int) -> int:
        return ROW_BLOCK * (g.hidden * 4 + g.intermediate * act_bytes)

    # What happens to rows [first, first + count) and column blocks [begin, end) ------------

    def project_qkv(self, first: Int, count: Int, columns: Columns) -> None:
        self._product(
            gemm(self.k.unit, store()), "qkv", count, self.g.hidden, columns,
            (self.acts + first * self.acts_step, self.acts_step),
            (self.qkv + first * self.qkv_step, self.qkv_step), (self.k.null(), 0),
        )  # fmt: skip

    def project_out(self, first: Int, count: Int, columns: Columns) -> None:
        epilogue, out, x = self._sum_into(first)
        self._product(
            gemm(self.k.unit, epilogue), "o", count, self.g.context_width, columns,
            (self.context + first * self.context_step, self.context_step), out, x,
        )  # fmt: skip

    def mlp_up(self, first: Int, count: Int, columns: Columns) -> None:
        epilogue = (gate if self.g.gated else activate)(self.g.activation)
        self._product(
            gemm(self.k.unit, epilogue), "up", count, self.g.hidden, columns,
            (self.acts + first * self.acts_step, self.acts_step),
            (self.inner, self.inner_step), (self.k.null(), 0),
        )  # fmt: skip

    def mlp_down(self, first: Int, count: Int, columns: Columns) -> None:
        epilogue, out, x = self._sum_into(first)
        self._product(
            gemm(self.k.unit, epilogue), "down", count, self.g.intermediate, columns,
            (self.inner, self.inner_step), out, x,
        )  # fmt: skip

    def _sum_into(self, first: Int) -> tuple[Epilogue, Rows, Rows]:
        """How a product meets the residual stream: (epilogue, output, residual).

        Norm-first: x += product. Else: sums = product + x. Sandwich: sums = product."""
        x, sums = (self.x + first * self.x_step, self.x_step), (self.sums, self.x_step)
        if self.g.sandwich:
            return store_wide(), sums, x
        return add_residual(), x if self.g.norm_first else sums, x

    def add_normed(self, name: str, first: Int, count: Int, sums_first: Int) -> None:
        """Sandwich: x += norm(sums)."""
        if not self.g.sandwich:
            return
        k, g = self.k, self.g
        function = norm_rows(k.unit, g.norm, g.hidden, g.eps, "add")
        source = self.sums + (first - sums_first) * self.x_step
        x, weight = self.x + first * self.x_step, LAYER.ptr(k, self.block, name)
        steps = [self.x_step, self.x_step, 0]
        function(k, [source, weight, k.null(), x, k.null()], [k.int(0), count, *steps])

    def norm(self, name: str, first: Int, count: Int, sums_first: Int) -> None:
        """Norm-first: x -> acts. Else: sums (whose row 0 is row `sums_first`) -> x and acts."""
        k, g = self.k, self.g
        function = norm_rows(k.unit, g.norm, g.hidden, g.eps, "acts" if g.norm_first else "both")
        x, acts = self.x + first * self.x_step, self.acts + first * self.acts_step
        source = x if g.norm_first else self.sums + (first - sums_first) * self.x_step
        weight, bias = (LAYER.ptr(k, self.block, name + part) for part in ("", "_bias"))
        steps = [self.x_step, self.x_step, self.acts_step]
        function(k, [source, weight, bias, x, acts], [k.int(0), count, *steps])

    def norm_before_attention(self, first: Int, count: Int) -> None:
        """Where a layer has no such norm (ModernBERT's first), `acts` holds its input already."""
        if self.g.norm_first:
            missing = LAYER.ptr(self.k, self.block, "attention_norm").is_null()
            with self.k.when(~missing):
                self.norm("attention_norm", first, count, first)

    def rotate(self, first: Int, count: Int) -> None:
        if not self.g.rotary:
            return
        k, g = self.k, self.g
        eps = g.eps if g.qk_norm else None
        function = rotate_rows(k.unit, g.heads, g.kv_heads, g.head_dim, eps)
        table, q_norm, k_norm = (
            LAYER.ptr(k, self.block, name) for name in ("rope", "q_norm", "k_norm")
        )
        places = FRAME.ptr(k, self.frame, "places")
        ints = [first, first + count, self.qkv_step]
        function(k, [self.qkv, places, table, q_norm, k_norm], ints)

    def attend(self, sequence: Int, kv_head: Int, scratch: Ptr, *, narrow: bool) -> None:
        """All rows of a sequence; narrow: its one wanted row, written to row `sequence`."""
        k, g, act = self.k, self.g, self.k.rung.act_bytes
        first, length = sequence_rows(k, self.frame, sequence)
        count, skipped, target = length, k.int(0), first
        if narrow:
            count, target = k.int(1), sequence
            skipped = k.int(0) if g.poolings == ("cls",) else length - 1
        row, group = self.qkv + first * self.qkv_step, g.heads // g.kv_heads
        q = row + kv_head * (group * g.head_dim * act) + skipped * self.qkv_step
        keys = row + (kv_head * (g.head_dim * act) + g.heads * g.head_dim * act)
        values = keys + g.kv_heads * g.head_dim * act
        out = self.context + target * self.context_step + kv_head * (group * g.head_dim * act)
        back, ahead, bias_step = (
            LAYER.int(k, self.block, name) for name in ("back", "ahead", "bias_step")
        )
        bias = LAYER.ptr(k, self.block, "bias") + kv_head * (bias_step * group)
        attention(k.unit, g.attention)(
            k,
            [q, keys, values, out, bias, scratch],
            [length, count, skipped, self.qkv_step, self.context_step, back, ahead, bias_step],
        )

    def choose_rows(self, first: Int, count: Int) -> None:
        """Copy the one wanted row of each of these sequences out of the residual stream."""
        k, chosen = self.k, FRAME.ptr(self.k, self.frame, "chosen")
        with k.loop(first, first + count) as sequence:
            row, length = sequence_rows(k, self.frame, sequence.index)
            row = row if self.g.poolings == ("cls",) else row + length - 1
            source, target = self.x + row * self.x_step, chosen + sequence.index * self.x_step
            with k.loop(0, self.x_step, k.rung.vector_bytes) as at:
                k.store(k.load(source + at.index), target + at.index)

    def _product(
        self, function: Function, name: str, rows: Int, depth: int, columns: Columns,
        a: Rows, c: Rows, r: Rows,
    ) -> None:  # fmt: skip
        k = self.k
        weight, bias = (LAYER.ptr(k, self.block, name + part) for part in ("", "_bias"))
        ints = [rows, k.int(depth // k.rung.group), *columns, a[1], c[1], r[1]]
        function(k, [a[0], weight, bias, c[0], r[0]], ints)


def sequence_rows(k: Kernel, frame: Ptr, sequence: Int) -> tuple[Int, Int]:
    """(first row, length) of a sequence; the pass's first row is 0 whatever its batch was."""
    cu_seqlens = FRAME.ptr(k, frame, "cu_seqlens")
    here = cu_seqlens + sequence * 4
    start = k.load_int32(here)
    return start - k.load_int32(cu_seqlens), k.load_int32(here + 4) - start
