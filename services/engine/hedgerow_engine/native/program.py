"""A whole model as one program: embed, layers, answer rows; entered at any stage.

Stage 0 embeds, stages 1 to n are the layers, stage n + 1 writes the answer. `advance(model,
frame, crew, first, last)` runs stages [first, last): a whole pass in one call, or a layer at a
time, with the same kernels and so the same bytes.
"""

from __future__ import annotations

from hedgerow_engine.native.crew import (
    Phases,
    write_caller,
    write_dismiss,
    write_helper,
    write_rouse,
)
from hedgerow_engine.native.embed import embed_sequence
from hedgerow_engine.native.geometry import Geometry
from hedgerow_engine.native.ir import Function, Int, Kernel, Ptr, Unit
from hedgerow_engine.native.layer import ROW_BLOCK, Layer, sequence_rows
from hedgerow_engine.native.norms import norm_rows
from hedgerow_engine.native.packing import PACK_EXPORTS, write_packers
from hedgerow_engine.native.pooling import copy_row, pool, tail_step, unit_row
from hedgerow_engine.native.rotary import write_places
from hedgerow_engine.native.rungs import Rung
from hedgerow_engine.native.schedule import COLUMN_MODE_TOKENS, by_columns, by_rows
from hedgerow_engine.native.words import FRAME, LAYER, MODEL, POOL, TAIL

_ANSWER_BUFFERS = 2
_SINGLE_ROW = frozenset({"cls", "lasttoken"})


def write_program(g: Geometry, rung: Rung, *, threads: int) -> Unit:
    """The module of a model; it exports the functions of `exports(threads)`."""
    unit = Unit(rung)
    write_packers(unit)
    stages = _Stages(unit, g, threads)

    def run(k: Kernel, model: Ptr, crew: Ptr, frame: Ptr, first: Int, last: Int, me: Int) -> None:
        ints = [first, last, me]
        stages.walk(k, [model, frame, crew], ints)

    if threads > 1:
        write_caller(unit, run)
        write_helper(unit, run)
        write_rouse(unit)
        write_dismiss(unit)
        return unit
    k = unit.kernel("advance", ptrs=3, ints=2, export=True)
    model, frame, crew = k.ptrs
    run(k, model, crew, frame, k.ints[0], k.ints[1], k.int(0))
    k.done()
    return unit


def exports(threads: int) -> tuple[str, ...]:
    """advance and the packers; for several threads, those of `crew` too."""
    return ("advance", *PACK_EXPORTS, *(("helper", "rouse", "dismiss") if threads > 1 else ()))


def can_narrow(g: Geometry, threads: int, num_tokens: int) -> bool:
    """Whether a pass whose rows are whole sequences may set FRAME's `narrow`."""
    return g.narrow and (threads == 1 or num_tokens > COLUMN_MODE_TOKENS)


def answer_width(g: Geometry, rung: Rung) -> int:
    """Numbers of one buffer for a row of the answer, at its widest, in whole vectors and with
    room for a norm's activations."""
    widths = [g.hidden * len(g.poolings), *(step.width_out for step in g.tail)]
    padded = -(-max(widths) // rung.lanes) * rung.lanes
    return 2 * padded


def local_bytes(g: Geometry, rung: Rung) -> int:
    """Room of one thread besides its attention scratch."""
    answers = _ANSWER_BUFFERS * answer_width(g, rung) * 4
    return -(-(Layer.local_bytes(g, rung.act_bytes) + answers) // 64) * 64


class _Stages:
    """Writes the stages, each a function of (model, frame, crew; ..., member)."""

    def __init__(self, unit: Unit, g: Geometry, threads: int) -> None:
        self.unit, self.g, self.threads = unit, g, threads
        self.walk = self._walk(self._embed(), self._layer(), self._answer())

    def _phases(self, k: Kernel, crew: Ptr, member: Int) -> Phases:
        return Phases(k, crew, member, parallel=self.threads > 1)

    def _walk(self, embed: Function, layer: Function, answer: Function) -> Function:
        k = self.unit.kernel("walk", ptrs=3, ints=3)
        first, last, member = k.ints
        end = MODEL.int(k, k.ptrs[0], "num_layers") + 1
        with k.loop(first, last) as stage:
            with k.when(stage.index.equals(0)):
                embed(k, k.ptrs, [member])
            with k.when((stage.index > 0) & (stage.index < end)):
                layer(k, k.ptrs, [stage.index - 1, member])
            with k.when(stage.index.equals(end)):
                answer(k, k.ptrs, [member])
        return k.done()

    def _embed(self) -> Function:
        g = self.g
        k = self.unit.kernel("embed_stage", ptrs=3, ints=1)
        model, frame, crew = k.ptrs
        x, acts = (FRAME.ptr(k, frame, name) for name in ("x", "acts"))
        ids, pair_start = (FRAME.ptr(k, frame, name) for name in ("ids", "pair_start"))
        word, table = (MODEL.ptr(k, model, name) for name in ("word", "table"))
        phases = self._phases(k, crew, k.ints[0])
        with phases.tasks(FRAME.int(k, frame, "num_seqs")) as sequence:
            first, length = sequence_rows(k, frame, sequence)
            no_pairs = pair_start.is_null()
            # With no pairs any readable address will do: its number is not taken.
            found = k.load_int32(k.choose(no_pairs, ids, pair_start + sequence * 4))
            second = k.choose(no_pairs, k.int(0), found)
            here = x + first * (g.hidden * 4)
            embed = embed_sequence(self.unit, g.embed)
            embed(k, [ids + first * 4, word, table, here], [length, second])
            if g.rotary:
                write_places(k, FRAME.ptr(k, frame, "places"), first, length)
            if g.embed_norm:
                norm = norm_rows(self.unit, g.norm, g.hidden, g.eps)
                weight, bias = (MODEL.ptr(k, model, n) for n in ("embed_norm", "embed_norm_bias"))
                steps = [g.hidden * 4, g.hidden * 4, g.hidden * k.rung.act_bytes]
                ptrs = [here, weight, bias, here, acts + first * steps[2]]
                norm(k, ptrs, [k.int(0), length, *steps])
        return k.done()

    def _layer(self) -> Function:
        g = self.g
        k = self.unit.kernel("layer_stage", ptrs=3, ints=2)
        model, frame, crew = k.ptrs
        number, member = k.ints
        phases = self._phases(k, crew, member)
        block = MODEL.ptr(k, model, "layers") + number * LAYER.num_bytes
        shared = FRAME.ptr(k, frame, "local")
        own = shared + member * local_bytes(g, k.rung)
        scratch_step = FRAME.int(k, frame, "scratch_step")
        scratch = FRAME.ptr(k, frame, "scratch") + member * scratch_step
        last = number.equals(MODEL.int(k, model, "num_layers") - 1)
        narrow = last & (FRAME.int(k, frame, "narrow") > 0)

        def rows(num_rows: Int) -> None:
            layer = Layer(k, g, frame, block, own)
            if g.narrow:
                with k.when(narrow):
                    by_rows(layer, phases, num_rows, scratch, narrow=True)
            with k.when(~narrow):
                by_rows(layer, phases, num_rows, scratch, narrow=False)

        if self.threads == 1:
            rows(k.int(ROW_BLOCK))
            return k.done()
        num_tokens = FRAME.int(k, frame, "num_tokens")
        few = num_tokens <= COLUMN_MODE_TOKENS
        with k.when(few):
            by_columns(Layer(k, g, frame, block, shared), phases, scratch)
        with k.when(~few):
            rows(self._rows_per_task(num_tokens))
        return k.done()

    def _rows_per_task(self, num_tokens: Int) -> Int:
        """At most ROW_BLOCK rows, equal for all, and as many tasks as threads or a multiple."""
        most = ROW_BLOCK * self.threads
        tasks = (num_tokens + (most - 1)) // most * self.threads
        return (num_tokens + (tasks - 1)) // tasks

    def _answer(self) -> Function:
        g = self.g
        k = self.unit.kernel("answer_stage", ptrs=3, ints=1)
        model, frame, crew = k.ptrs
        member = k.ints[0]
        phases = self._phases(k, crew, member)
        local = FRAME.ptr(k, frame, "local") + member * local_bytes(g, k.rung)
        buffers = local + Layer.local_bytes(g, k.rung.act_bytes)
        if g.norm_first:
            self._final_norm(k, phases, model, frame)
        pooled, unit = (FRAME.ptr(k, frame, name) for name in ("pooled", "unit"))
        with phases.tasks(FRAME.int(k, frame, "num_rows")) as row:
            source = self._pool_row(k, frame, row, buffers)
            source = self._tail(k, model, source, buffers)
            offset = row * (g.output_width * 4)
            copy_row(k, source, pooled + offset, g.output_width)
            if g.unit:
                # In place: whole vectors, padded with zeros, which the answer has no room for.
                vectors = -(-g.output_width // k.rung.lanes)
                unit_row(k, source, source, vectors * k.rung.lanes)
                copy_row(k, source, unit + offset, g.output_width)
        return k.done()

    def _final_norm(self, k: Kernel, phases: Phases, model: Ptr, frame: Ptr) -> None:
        """All rows that are left, in place."""
        g, acts = self.g, FRAME.ptr(k, frame, "acts")
        x, num_rows = self._rows_left(k, frame)
        weight, bias = (MODEL.ptr(k, model, name) for name in ("final_norm", "final_norm_bias"))
        norm = norm_rows(self.unit, g.norm, g.hidden, g.eps)
        steps = [g.hidden * 4, g.hidden * 4]
        with phases.tasks((num_rows + (ROW_BLOCK - 1)) // ROW_BLOCK) as task:
            first = task * ROW_BLOCK
            last = (first + ROW_BLOCK).at_most(num_rows)
            ints = [first, last, *steps, g.hidden * k.rung.act_bytes]
            norm(k, [x, weight, bias, x, acts], ints)

    def _rows_left(self, k: Kernel, frame: Ptr) -> tuple[Ptr, Int]:
        """Where the rows of the last layer lie, and how many there are."""
        narrow = FRAME.int(k, frame, "narrow") > 0
        x, chosen = (FRAME.ptr(k, frame, name) for name in ("x", "chosen"))
        num_tokens, num_seqs = (FRAME.int(k, frame, name) for name in ("num_tokens", "num_seqs"))
        return k.choose(narrow, chosen, x), k.choose(narrow, num_seqs, num_tokens)

    def _pool_row(self, k: Kernel, frame: Ptr, row: Int, buffers: Ptr) -> Ptr:
        pools, (x, _) = FRAME.ptr(k, frame, "pools"), self._rows_left(k, frame)
        narrow, by_table = FRAME.int(k, frame, "narrow") > 0, ~pools.is_null()
        # A row of the answer is a sequence unless the table says otherwise.
        num_seqs = FRAME.int(k, frame, "num_seqs")
        first, length = sequence_rows(k, frame, row.at_most(num_seqs - 1))
        first, length = k.choose(narrow, row, first), k.choose(narrow, k.int(1), length)
        entry = k.choose(by_table, pools + row * POOL.num_bytes, frame)
        begin, end, offset = (
            k.choose(by_table, POOL.int(k, entry, name), otherwise)
            for name, otherwise in (
                ("begin", first),
                ("end", first + length),
                ("offset", k.int(0)),
            )
        )
        for i, mode in enumerate(self.g.poolings):
            target = buffers + i * self.g.hidden * 4
            pool(self.unit, mode, self.g.hidden)(k, [x, target], [begin, end, offset])
        return buffers

    def _tail(self, k: Kernel, model: Ptr, source: Ptr, buffers: Ptr) -> Ptr:
        width = answer_width(self.g, k.rung) * 4
        weights = MODEL.ptr(k, model, "tail")
        for i, step in enumerate(self.g.tail):
            block = weights + i * TAIL.num_bytes
            target = buffers + (i + 1) % _ANSWER_BUFFERS * width
            weight, bias = (TAIL.ptr(k, block, name) for name in ("weight", "bias"))
            tail_step(self.unit, step)(k, [source, weight, bias, target])
            source = target
        return source
