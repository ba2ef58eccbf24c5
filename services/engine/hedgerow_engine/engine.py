"""One loaded model behind `step`: checks, launches, collects, and keeps a bad row to itself."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hedgerow_engine.executor import (
    Brief,
    Executor,
    Expecting,
    Pass,
    Pending,
    Prioritised,
    Ready,
    Stepped,
    Warming,
)
from hedgerow_engine.lazy import LazyTensor
from hedgerow_engine.outputs import finish, finite
from hedgerow_engine.subset import heads_of, with_refused, without
from hedgerow_engine.thread import EngineThread
from hedgerow_shared.errors import BadInputError, HedgerowError, RowError
from hedgerow_shared.modelcard import ModelCard
from hedgerow_shared.ragged import Lane, RaggedBatch, Row, StepOutput, Task, check

logger = logging.getLogger(__name__)
Wait = Callable[[Callable[[], None]], None]


@dataclass(slots=True)
class EngineCounters:
    batches: int = 0
    sequences: int = 0
    tokens: int = 0
    rows_failed: int = 0
    steps_failed: int = 0
    batches_isolated: int = 0


class Engine:
    """One loaded model. Satisfies the scheduler's `Engine` port."""

    def __init__(
        self,
        card: ModelCard,
        executor: Executor,
        thread: EngineThread,
        waiter: Wait | None,
        *,
        fingerprint: str,
        quantized: bool,
        bulk_waiter: Wait | None = None,
    ) -> None:
        self.card = card
        self.fingerprint = fingerprint
        self._executor = executor
        # Asking a protocol whether something satisfies it takes ten microseconds each time.
        self._brief = executor if isinstance(executor, Brief) else None
        self._expecting = executor if isinstance(executor, Expecting) else None
        self._stepped = executor if isinstance(executor, Stepped) else None
        self._prioritised = executor if isinstance(executor, Prioritised) else None
        self._thread = thread
        self._waiter = waiter
        # Bulk passes end in their own order: a query must not wait behind one to be noticed.
        self._bulk_waiter = bulk_waiter or waiter
        self._quantized = quantized
        self._counters = EngineCounters()

    @property
    def dtype(self) -> str:
        return self._executor.dtype

    @property
    def executor_name(self) -> str:
        return self._executor.name

    @property
    def max_seq_len(self) -> int:
        return self.card.max_seq_len

    def step(self, batch: RaggedBatch, lane: Lane) -> LazyTensor:
        """Start a batch and return at once; or after a few milliseconds with the answer, where
        the batch is that short and nothing else runs (see `Brief`).

        Raises BadChunkError when its arrays contradict each other. A sequence that this model
        cannot run (too long, an id it does not have, a task it does not offer) gets its own
        error in the answer; the others run without it.
        """
        bulk = lane is Lane.BULK
        if self._expecting is not None and not bulk:
            self._expecting.expect()
        check(batch)
        lazy = LazyTensor()
        refused = self._refused(batch)

        def job() -> None:
            self._launch(batch, refused, lazy, bulk)

        if bulk or not self._is_brief(batch) or not self._thread.run_here(job):
            self._thread.submit(job, bulk=bulk)
        return lazy

    def _is_brief(self, batch: RaggedBatch) -> bool:
        return self._brief is not None and batch.num_tokens <= self._brief.brief_tokens

    def prepare_while_idle(self) -> None:
        """Let an executor that wants to prepare shapes do so while nothing is queued."""
        if isinstance(self._executor, Warming):
            self._thread.when_idle(self._executor.warm_next)

    def close(self) -> None:
        """Give back what the executor holds; on the engine thread, when nothing is in flight."""
        self._executor.close()

    def stats(self) -> dict[str, float | int | str]:
        """Counters since start: batches, sequences, tokens, failures, graph_* of the executor."""
        c = self._counters
        return {
            "executor": self._executor.name,
            "dtype": self._executor.dtype,
            "batches": c.batches,
            "sequences": c.sequences,
            "tokens": c.tokens,
            "rows_failed": c.rows_failed,
            "steps_failed": c.steps_failed,
            "batches_isolated": c.batches_isolated,
            **self._executor.stats(),
        }

    def _refused(self, batch: RaggedBatch) -> dict[int, HedgerowError]:
        refused: dict[int, HedgerowError] = {}
        ids, vocab, limit = batch.input_ids, self.card.vocab_size, self.card.max_seq_len
        # A negative id is a very large one without its sign.
        if int(ids.view(np.uint32).max()) >= vocab:
            bad = np.logical_or(ids < 0, ids >= vocab)
            for i in np.unique(np.searchsorted(batch.cu_seqlens, np.flatnonzero(bad), "right")):
                refused[int(i) - 1] = BadInputError(
                    f"a token id is outside this model's 0 to {vocab - 1}"
                )
        if batch.longest > limit:
            seqlens = batch.seqlens
            for i in np.flatnonzero(seqlens > limit):
                refused[int(i)] = BadInputError(
                    f"{seqlens[i]} tokens are more than this model's {limit}"
                )
        for spec in {id(s): s for s in batch.outputs}.values():
            problem = self._spec_problem(spec.task, spec.dimensions)
            if problem:
                refused |= {
                    i: BadInputError(problem) for i, s in enumerate(batch.outputs) if s is spec
                }
        return refused

    def _spec_problem(self, task: str, dimensions: tuple[int, ...]) -> str | None:
        if task not in self._executor.tasks:
            return f"this model does not offer {task!r} (it offers {sorted(self._executor.tasks)})"
        if task == "embed" and any(not 1 <= d <= self.card.dimension for d in dimensions):
            return f"dimensions must be 1 to {self.card.dimension}"
        return None

    def _launch(
        self, batch: RaggedBatch, refused: dict[int, HedgerowError], lazy: LazyTensor, bulk: bool
    ) -> None:
        part, kept = without(batch, refused) if refused else (batch, None)
        try:
            if part is None:
                self._settle(lazy, StepOutput([refused[i] for i in range(batch.num_seqs)]))
                return
            pending = self._start(part, heads_of(part), bulk)
        except Exception as error:  # noqa: BLE001 - becomes the answer of this step
            self._fail(lazy, error)
            return
        c = self._counters
        c.batches, c.sequences = c.batches + 1, c.sequences + part.num_seqs
        c.tokens += part.num_tokens

        def wait() -> None:
            self._collect(part, kept, refused, pending, lazy, bulk)

        waiter = self._bulk_waiter if bulk else self._waiter
        if waiter is None:
            wait()
        else:
            waiter(wait)

    def _start(self, batch: RaggedBatch, heads: tuple[Task, ...], bulk: bool) -> Pending:
        if not bulk:
            return self._executor.launch(batch, heads)
        if self._prioritised is not None:
            return self._prioritised.launch_bulk(batch, heads)
        return self._in_steps(batch) or self._executor.launch(batch, heads)

    def _in_steps(self, batch: RaggedBatch) -> Pending | None:
        """Run a bulk batch a layer at a time and let queries through between two layers."""
        if self._stepped is None:
            return None
        rows = self._stepped.begin(batch)
        while not rows.step():
            self._thread.run_urgent()
        return Ready(rows.answer())

    def _collect(
        self,
        batch: RaggedBatch,
        kept: list[int] | None,
        refused: dict[int, HedgerowError],
        pending: Pending,
        lazy: LazyTensor,
        bulk: bool,
    ) -> None:
        def done(output: StepOutput) -> None:
            self._settle(lazy, output if kept is None else with_refused(output, kept, refused))

        try:
            answer = pending.wait()
            poisoned = self._waiter is not None and batch.num_seqs > 1 and not finite(answer)
            output = None if poisoned else self._finish(batch, answer)
        except Exception as error:  # noqa: BLE001 - becomes the answer of this step
            self._fail(lazy, error)
            return
        finally:
            # `finish` copies every row it gives out.
            pending.release()
        if output is not None:
            done(output)
            return
        self._counters.batches_isolated += 1
        logger.warning("a batch of %d held a number that is not finite: one by one", batch.num_seqs)
        self._one_by_one(batch, [], done, lazy, bulk)

    def _finish(self, batch: RaggedBatch, answer: Pass) -> StepOutput:
        return finish(batch, answer, normalize=self.card.normalize, quantized=self._quantized)

    def _one_by_one(
        self,
        batch: RaggedBatch,
        rows: list[Row],
        done: Callable[[StepOutput], None],
        lazy: LazyTensor,
        bulk: bool,
    ) -> None:
        """Run each sequence alone, one at a time: on a GPU a NaN reaches its neighbours' rows
        through whole tiles, so only a lone run says whose it is. Whatever came meanwhile in the
        same lane has its turn between two of them."""
        if len(rows) == batch.num_seqs:
            done(StepOutput(rows))
            return
        others = dict.fromkeys(set(range(batch.num_seqs)) - {len(rows)}, RowError("left out"))
        alone, _ = without(batch, dict(others))
        assert alone is not None, "one sequence stays"
        waiter = self._bulk_waiter if bulk else self._waiter
        assert waiter is not None, "only devices that answer later come here"

        def collect(pending: Pending) -> None:
            try:
                rows.extend(self._finish(alone, pending.wait()).rows)
            except Exception as error:  # noqa: BLE001 - becomes the answer of this step
                self._fail(lazy, error)
                return
            finally:
                pending.release()
            self._one_by_one(batch, rows, done, lazy, bulk)

        def launch() -> None:
            try:
                pending = self._start(alone, heads_of(alone), bulk)
            except Exception as error:  # noqa: BLE001 - becomes the answer of this step
                self._fail(lazy, error)
                return
            waiter(lambda: collect(pending))

        try:
            self._thread.submit(launch, bulk=bulk)
        except HedgerowError as error:
            self._fail(lazy, error)

    def _settle(self, lazy: LazyTensor, output: StepOutput) -> None:
        self._counters.rows_failed += sum(isinstance(r, HedgerowError) for r in output.rows)
        lazy.settle(output)

    def _fail(self, lazy: LazyTensor, error: Exception) -> None:
        self._counters.steps_failed += 1
        logger.error("step failed: %s: %s", type(error).__name__, error, exc_info=error)
        known = error if isinstance(error, HedgerowError) else None
        lazy.settle(None, known or HedgerowError(f"the engine failed: {type(error).__name__}"))
