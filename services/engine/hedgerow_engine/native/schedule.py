"""One layer over all tokens of a pass, as phases of tasks that threads share.

By rows (the usual way): 128 rows at a time run everything between two attentions, so that their
activations stay in L2 from one product to the next.

    [rows]           norm?  ->  query, key, value projection  ->  rotate?
    [sequence, head] attention
    [rows]           output projection + residual  ->  norm  ->  MLP up  ->  MLP down + residual
                     ->  norm?

By columns (several threads, few tokens): every product is a phase of its own, shared out by
column blocks, because there are too few rows to share.
"""

from __future__ import annotations

from collections.abc import Callable

from hedgerow_engine.native.crew import Phases
from hedgerow_engine.native.geometry import Geometry
from hedgerow_engine.native.ir import Int, Ptr
from hedgerow_engine.native.layer import Columns, Layer
from hedgerow_engine.native.words import FRAME

COLUMN_MODE_TOKENS = 24
_COLUMN_TASKS = 4


def by_rows(
    layer: Layer, phases: Phases, rows_per_task: Int, scratch: Ptr, *, narrow: bool
) -> None:
    """narrow: after attention only one row of each sequence goes on, as rows of `chosen`."""
    k, g = layer.k, layer.g
    num_tokens = FRAME.int(k, layer.frame, "num_tokens")
    num_rows = FRAME.int(k, layer.frame, "num_seqs") if narrow else num_tokens

    def all_columns(width: int) -> Columns:
        return k.int(0), k.int(width // k.rung.columns)

    with phases.tasks((num_tokens + rows_per_task - 1) // rows_per_task) as task:
        first = task * rows_per_task
        count = (num_tokens - first).at_most(rows_per_task)
        layer.norm_before_attention(first, count)
        layer.project_qkv(first, count, all_columns(g.qkv_width))
        layer.rotate(first, count)
    _attention_phase(layer, phases, scratch, narrow=narrow)
    residual = layer.x
    with phases.tasks((num_rows + rows_per_task - 1) // rows_per_task) as task:
        first = task * rows_per_task
        count = (num_rows - first).at_most(rows_per_task)
        if narrow:
            layer.choose_rows(first, count)
            layer.x = FRAME.ptr(k, layer.frame, "chosen")
        layer.project_out(first, count, all_columns(g.hidden))
        layer.add_normed("after_attention_norm", first, count, first)
        layer.norm("mlp_norm" if g.norm_first else "attention_norm", first, count, first)
        layer.mlp_up(first, count, all_columns(_up_width(g)))
        layer.mlp_down(first, count, all_columns(g.hidden))
        layer.add_normed("after_mlp_norm", first, count, first)
        if not g.norm_first:
            layer.norm("mlp_norm", first, count, first)
    layer.x = residual


def by_columns(layer: Layer, phases: Phases, scratch: Ptr) -> None:
    """All tokens in every product; every thread's layer has the same local buffers."""
    k, g = layer.k, layer.g
    count, zero = FRAME.int(k, layer.frame, "num_tokens"), k.int(0)
    rows = k.rung.rows

    def columns_phase(width: int, product: Callable[[Int, Int, Columns], None]) -> None:
        blocks = width // k.rung.columns
        tasks = min(blocks, _COLUMN_TASKS)
        with phases.tasks(k.int(tasks)) as task:
            product(zero, count, (task * blocks // tasks, (task + 1) * blocks // tasks))

    def rows_phase(work: Callable[[Int, Int], None]) -> None:
        with phases.tasks((count + (rows - 1)) // rows) as task:
            first = task * rows
            work(first, (count - first).at_most(rows))

    if g.norm_first:
        rows_phase(layer.norm_before_attention)
    columns_phase(g.qkv_width, layer.project_qkv)
    if g.rotary:
        rows_phase(layer.rotate)
    _attention_phase(layer, phases, scratch, narrow=False)
    columns_phase(g.hidden, layer.project_out)

    def after_attention(first: Int, count: Int) -> None:
        layer.add_normed("after_attention_norm", first, count, zero)
        layer.norm("mlp_norm" if g.norm_first else "attention_norm", first, count, zero)

    rows_phase(after_attention)
    columns_phase(_up_width(g), layer.mlp_up)
    columns_phase(g.hidden, layer.mlp_down)
    if g.sandwich:
        rows_phase(lambda first, n: layer.add_normed("after_mlp_norm", first, n, zero))
    if not g.norm_first:
        rows_phase(lambda first, n: layer.norm("mlp_norm", first, n, zero))


def _attention_phase(layer: Layer, phases: Phases, scratch: Ptr, *, narrow: bool) -> None:
    num_seqs = FRAME.int(layer.k, layer.frame, "num_seqs")
    with phases.tasks(num_seqs * layer.g.kv_heads) as task:
        sequence = task // layer.g.kv_heads
        layer.attend(sequence, task - sequence * layer.g.kv_heads, scratch, narrow=narrow)


def _up_width(g: Geometry) -> int:
    return g.intermediate * (2 if g.gated else 1)
