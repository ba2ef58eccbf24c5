"""One model run by generated code: batches in, rows out. No torch anywhere.

    program   written for the model's geometry and this CPU's rung (`build`)
    weights   packed once, in one huge-page block (`model`)
    pass      up to `pass_tokens` tokens: one native call, or one per layer (`begin`, `step`)

Bytes of a row depend on its sequence alone: not on its neighbours, the size of the pass, the
number of threads, nor on whether a pass ran whole or layer by layer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from time import perf_counter

import numpy as np

from hedgerow_engine.executor import BRIEF_S, Floats, Pass, Pending, Ready
from hedgerow_engine.native.arena import Arena, ArenaPool
from hedgerow_engine.native.build import Built, build, supported
from hedgerow_engine.native.memory import address
from hedgerow_engine.native.passes import Cut, cut_batch, pool_table
from hedgerow_engine.native.program import can_narrow
from hedgerow_engine.native.threads import Crew
from hedgerow_engine.native.words import FRAME
from hedgerow_engine.weights import Weights
from hedgerow_shared.errors import HedgerowError
from hedgerow_shared.modelcard import ModelCard
from hedgerow_shared.ragged import RaggedBatch, Task

__all__ = ["NativeExecutor", "NativePass", "supported"]

# Per thread. Weights are streamed once per 128 rows anyway, and a small pass stays in L2.
PASS_TOKENS = 128
_NUMERICS = 1
_WARM_LENGTHS = (8, 16, 32, 128)
_BRIEF_LENGTH = 32


@dataclass(slots=True)
class NativeCounters:
    """passes: native passes begun. tokens: theirs."""

    passes: int = 0
    tokens: int = 0


class NativeExecutor:
    """Satisfies the engine's `Executor`. One thread at a time calls it.

    brief_tokens: see `hedgerow_engine.executor.Brief`; known after `warm`
    """

    def __init__(self, built: Built) -> None:
        self.card, self.geometry, self.rung = built.card, built.geometry, built.rung
        self.threads, self.pass_tokens = built.threads, PASS_TOKENS * built.threads
        self.counters = NativeCounters()
        self.brief_tokens = 0
        self._built = built
        self._model = address(built.model.words)
        self._num_stages = built.model.num_layers + 2
        self._advance = built.program.function("advance", 5)
        self._crew: Crew | None = None
        if built.threads > 1:
            helper = built.program.function("helper", 3)
            rouse, dismiss = (built.program.function(name, 1) for name in ("rouse", "dismiss"))
            self._crew = Crew(helper, rouse, dismiss, self._model, built.threads)
        self._arenas = ArenaPool(built.geometry, built.rung, threads=built.threads)
        self._skip_prompts = not built.card.pooling.include_prompt and not built.card.is_scorer

    @classmethod
    def load(
        cls,
        card: ModelCard,
        weights: Weights,
        *,
        dtype: str = "auto",
        threads: int = 1,
        log: Callable[[str], None],
        rung: str | None = None,
    ) -> NativeExecutor:
        """Compile (or take from the cache), pack, test. Raises UnsupportedError with the reason
        when another executor must serve this model, StartupError when nothing can."""
        return cls(build(card, weights, dtype=dtype, threads=threads, log=log, rung=rung))

    @property
    def name(self) -> str:
        return f"native {self.rung.name}"

    @property
    def dtype(self) -> str:
        return self.rung.dtype

    @property
    def numerics(self) -> str:
        return f"native-{self.rung.name}-{_NUMERICS}"

    @property
    def tasks(self) -> frozenset[Task]:
        scorer: tuple[Task, ...] = ("score", "classify")
        return frozenset(scorer if self.card.is_scorer else ("embed",))

    def launch(self, batch: RaggedBatch, heads: tuple[Task, ...]) -> Pending:
        """Run a checked batch to its end; the answer is there when this returns."""
        rows = self.begin(batch)
        rows.finish()
        return Ready(rows.answer())

    def run(self, batch: RaggedBatch) -> Floats:
        """float32 [num_rows, width]: unit vectors where the card says so, else pooled rows or
        logits. Holds no GIL while computing."""
        rows = self.begin(batch)
        rows.finish()
        return rows.pooled if rows.unit is None else rows.unit

    def begin(self, batch: RaggedBatch) -> NativePass:
        """A batch that runs a layer at a time: others may run between two of its steps.

        Raises ValueError for ids or lengths the model does not have: they would be read outside
        of its tables.
        """
        # A negative id is a very large one without its sign.
        if int(batch.input_ids.view(np.uint32).max()) >= self.card.vocab_size:
            raise ValueError(f"a token id is outside 0 to {self.card.vocab_size - 1}")
        if batch.longest > self.card.max_seq_len:
            raise ValueError(f"a sequence is longer than {self.card.max_seq_len} tokens")
        return NativePass(self, batch)

    def expect(self) -> None:
        """A query is being made ready: waking a helper takes as long as that."""
        if self._crew is not None:
            self._crew.rouse()

    def warm(self, seconds: float) -> None:
        """Touch weights and arenas; there are no shapes to prepare. And see how long a short
        query takes here: see `Brief`."""
        if seconds <= 0:
            return
        for length in _WARM_LENGTHS:
            self._time(length)
        length = min(_BRIEF_LENGTH, self.card.max_seq_len)
        took_s = min(self._time(length) for _ in range(3))
        self.brief_tokens = min(int(length * BRIEF_S / took_s), self.pass_tokens)

    def _time(self, length: int) -> float:
        """Seconds of a pass of one sequence."""
        length = min(length, self.card.max_seq_len)
        began_s = perf_counter()
        self.launch(RaggedBatch.of([np.zeros(length, np.int32)]), ())
        return perf_counter() - began_s

    def stats(self) -> Mapping[str, float]:
        return {
            "native_passes": float(self.counters.passes),
            "native_tokens": float(self.counters.tokens),
            "native_weight_bytes": float(self._built.model.num_bytes),
            "native_arena_bytes": float(self.arena_bytes),
        }

    @property
    def arena_bytes(self) -> int:
        """Held by arenas that wait for their next pass."""
        return self._arenas.num_bytes

    @property
    def helpers_asleep(self) -> int:
        """Helper threads that sleep in the kernel at the moment."""
        return 0 if self._crew is None else self._crew.sleeping()

    def close(self) -> None:
        """Send helper threads home."""
        if self._crew is not None:
            self._crew.close()
            self._crew = None

    def advance(self, arena: Arena, first: int, last: int) -> None:
        """Stages [first, last) of the pass in `arena`: 0 embeds, the last writes the answer."""
        crew = self._crew
        if crew is None:
            if self.threads > 1:
                raise HedgerowError("the executor is closed")
            self._advance(self._model, arena.frame_address, 0, first, last)
            return
        cores = crew.enter()
        try:
            self._advance(self._model, arena.frame_address, crew.address, first, last)
        finally:
            crew.leave(cores)

    def prepare(self, batch: RaggedBatch, cut: Cut) -> Arena:
        """An arena whose frame holds everything of a cut but where its rows go."""
        arena = self._arenas.take(cut.num_tokens, cut.longest)
        ids, cu = batch.input_ids, batch.cu_seqlens
        pairs = batch.pair_start
        FRAME.put(
            arena.frame,
            num_tokens=cut.num_tokens,
            num_seqs=cut.last - cut.first,
            num_rows=cut.num_rows,
            ids=address(ids) + 4 * int(cu[cut.first]),
            cu_seqlens=address(cu) + 4 * cut.first,
            pair_start=address(pairs) + 4 * cut.first if pairs.size else 0,
        )
        self.counters.passes += 1
        self.counters.tokens += cut.num_tokens
        return arena

    def can_narrow(self, cut: Cut) -> bool:
        fits = cut.longest <= self._built.model.narrow_tokens
        return fits and can_narrow(self.geometry, self.threads, cut.num_tokens)

    @property
    def num_stages(self) -> int:
        return self._num_stages

    @property
    def skip_prompts(self) -> bool:
        return self._skip_prompts

    def give_back(self, arena: Arena) -> None:
        self._arenas.give(arena)


class NativePass:
    """A batch on its way: its cuts run one after the other, stage by stage.

    pooled: float32 [num_rows, width], valid when done. unit: the same at length 1, or None
    """

    def __init__(self, executor: NativeExecutor, batch: RaggedBatch) -> None:
        self._executor = executor
        # The frame holds addresses: the arrays must be plain and live as long as this.
        self._batch = _plain(batch)
        self._cuts = cut_batch(batch, executor.pass_tokens)
        self._next_cut, self._next_stage = 0, 0
        self._arena: Arena | None = None
        self._pools: object = None
        g = executor.geometry
        num_rows = self._cuts[-1].first_row + self._cuts[-1].num_rows
        self.pooled: Floats = np.empty((num_rows, g.output_width), np.float32)
        self.unit: Floats | None = np.empty_like(self.pooled) if g.unit else None

    @property
    def done(self) -> bool:
        return self._next_cut == len(self._cuts)

    def step(self) -> bool:
        """Run one stage: the embedding, a layer, or the answer. True when all is done."""
        self._run(1)
        return self.done

    def finish(self) -> None:
        """Run what is left, each pass in one call."""
        while not self.done:
            self._run(self._executor.num_stages)

    def answer(self) -> Pass:
        """What the engine's heads expect."""
        assert self.done
        if self._executor.card.is_scorer:
            return Pass(logits=self.pooled)
        return Pass(pooled=self.pooled, unit=self.unit)

    def _run(self, stages: int) -> None:
        assert not self.done, "step after the end"
        executor = self._executor
        if self._arena is None:
            self._arena = self._begin_cut(self._cuts[self._next_cut])
        last = min(self._next_stage + stages, executor.num_stages)
        executor.advance(self._arena, self._next_stage, last)
        self._next_stage = last
        if last == executor.num_stages:
            executor.give_back(self._arena)
            self._arena, self._next_stage = None, 0
            self._next_cut += 1

    def _begin_cut(self, cut: Cut) -> Arena:
        arena = self._executor.prepare(self._batch, cut)
        pools = pool_table(self._batch, cut, skip_prompts=self._executor.skip_prompts)
        self._pools = pools
        row_bytes = cut.first_row * self._executor.geometry.output_width * 4
        FRAME.put(
            arena.frame,
            pools=0 if pools is None else address(pools),
            narrow=int(pools is None and self._executor.can_narrow(cut)),
            pooled=address(self.pooled) + row_bytes,
            unit=0 if self.unit is None else address(self.unit) + row_bytes,
        )
        return arena


def _plain(batch: RaggedBatch) -> RaggedBatch:
    """The batch with arrays a program can read by address; itself where they are."""
    arrays = batch.input_ids, batch.cu_seqlens, batch.pair_start
    if all(a.flags.c_contiguous and a.dtype == np.int32 for a in arrays):
        return batch
    ids, cu_seqlens, pair_start = (np.ascontiguousarray(a, np.int32) for a in arrays)
    return replace(batch, input_ids=ids, cu_seqlens=cu_seqlens, pair_start=pair_start)
