"""The engine thread and the waiter on fake devices: order, overtaking, overlap, and closing."""

from __future__ import annotations

import threading
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hedgerow_engine.engine import Engine
from hedgerow_engine.executor import Pass, Pending, Ready
from hedgerow_engine.thread import EngineThread
from hedgerow_engine.waiter import Waiter
from hedgerow_shared.errors import HedgerowError
from hedgerow_shared.modelcard import read_card
from hedgerow_shared.ragged import Lane, OutputSpec, RaggedBatch


class FakeDevice:
    name, synchronous = "fake", True

    def scope(self) -> Any:
        return nullcontext()

    def build(self, card: Any, weights: Any) -> Any:
        raise NotImplementedError

    def close(self) -> None:
        return


class FakeExecutor:
    """The vector of a sequence is its first id, everywhere; passes end when the test says."""

    name, dtype, numerics = "fake", "float32", "fake"
    tasks = frozenset({"embed"})

    def __init__(self) -> None:
        self.log: list[int] = []
        self.gates: dict[int, threading.Event] = {}
        self.running = threading.Event()

    def rows(self, batch: RaggedBatch) -> Pass:
        first = batch.input_ids[batch.cu_seqlens[:-1]]
        return Pass(pooled=np.repeat(first[:, None], 384, 1).astype(np.float32))

    def launch(self, batch: RaggedBatch, heads: Any) -> Pending:
        self.log.append(int(batch.input_ids[0]))
        if int(batch.input_ids[0]) in self.gates:
            self.running.set()
            self.gates[int(batch.input_ids[0])].wait(10)
        return Ready(self.rows(batch))

    def warm(self, seconds: float) -> None:
        return

    def stats(self) -> dict[str, float]:
        return {}

    def close(self) -> None:
        return


class SteppedExecutor(FakeExecutor):
    """Bulk batches take four steps; the test holds the second."""

    def __init__(self) -> None:
        super().__init__()
        self.reached, self.go_on = threading.Event(), threading.Event()

    def begin(self, batch: RaggedBatch) -> Any:
        executor, ident = self, int(batch.input_ids[0])

        class Steps:
            count = 0

            def step(self) -> bool:
                self.count += 1
                executor.log.append(ident)
                if self.count == 2:
                    executor.reached.set()
                    executor.go_on.wait(10)
                return self.count == 4

            def answer(self) -> Pass:
                return executor.rows(batch)

        return Steps()


class LatePending:
    """A pass whose bytes arrive when the test sets `arrived`."""

    def __init__(self, answer: Pass) -> None:
        self.arrived, self.released, self._answer = threading.Event(), False, answer

    def wait(self) -> Pass:
        assert self.arrived.wait(10)
        return self._answer

    def release(self) -> None:
        self.released = True


def engine_on(thread: EngineThread, executor: Any, folder: Path, waiter: Any = None) -> Engine:
    card = read_card(folder)
    return Engine(card, executor, thread, waiter, fingerprint="f", quantized=False)


def batch_of(ident: int) -> RaggedBatch:
    return RaggedBatch.of([[ident]], OutputSpec(normalize=False))


def test_what_is_run_at_the_end_waits_for_queued_bulk_and_for_a_running_pass(
    minilm_folder: Path,
) -> None:
    """Executors give back at the end what passes run on: between two layers would be too early."""
    thread, executor = EngineThread(FakeDevice()), SteppedExecutor()
    engine = engine_on(thread, executor, minilm_folder)
    steps = [engine.step(batch_of(i), Lane.BULK) for i in (1, 2)]
    assert executor.reached.wait(10)
    closing = threading.Thread(target=thread.close, args=([lambda: executor.log.append(99)],))
    closing.start()
    time.sleep(0.05)
    executor.go_on.set()
    closing.join(10)
    assert executor.log == [1] * 4 + [2] * 4 + [99]
    assert [s.result().rows[0][0][0] for s in steps] == [1, 2]
    assert not thread.run_here(lambda: executor.log.append(100)) and executor.log[-1] == 99


def test_a_query_overtakes_queued_bulk_and_bulk_keeps_its_order(minilm_folder: Path) -> None:
    thread, executor = EngineThread(FakeDevice()), FakeExecutor()
    engine = engine_on(thread, executor, minilm_folder)
    executor.gates[1] = threading.Event()
    steps = [engine.step(batch_of(i), Lane.BULK) for i in (1, 2, 3)]
    assert executor.running.wait(10)
    query = engine.step(batch_of(9), Lane.QUERY)
    executor.gates[1].set()
    assert query.result().rows[0][0][0] == 9
    assert [s.result().rows[0][0][0] for s in steps] == [1, 2, 3]
    assert executor.log == [1, 9, 2, 3]
    thread.close()


def test_a_query_overtakes_a_running_bulk_batch_between_two_layers(minilm_folder: Path) -> None:
    thread, executor = EngineThread(FakeDevice()), SteppedExecutor()
    engine = engine_on(thread, executor, minilm_folder)
    bulk = engine.step(batch_of(1), Lane.BULK)
    assert executor.reached.wait(10)
    query = engine.step(batch_of(9), Lane.QUERY)
    rerank_done = threading.Event()
    query.add_done_callback(rerank_done.set)
    executor.go_on.set()
    assert bulk.result().rows[0][0][0] == 1 and rerank_done.is_set()
    assert executor.log == [1, 1, 9, 1, 1]
    thread.close()


def test_a_device_that_answers_later_launches_the_next_batch_meanwhile(minilm_folder: Path) -> None:
    class LateExecutor(FakeExecutor):
        def __init__(self) -> None:
            super().__init__()
            self.pending: list[LatePending] = []

        def launch(self, batch: RaggedBatch, heads: Any) -> Pending:
            self.pending.append(LatePending(super().launch(batch, heads).wait()))
            return self.pending[-1]

    thread, executor, waiter = EngineThread(FakeDevice()), LateExecutor(), Waiter()
    engine = engine_on(thread, executor, minilm_folder, waiter.submit)
    one, two = (engine.step(batch_of(i), Lane.QUERY) for i in (1, 2))
    thread.call(lambda: None)
    assert executor.log == [1, 2] and not one.done() and not two.done()
    executor.pending[0].arrived.set()
    assert one.result().rows[0][0][0] == 1 and not two.done()
    executor.pending[1].arrived.set()
    assert two.result().rows[0][0][0] == 2
    thread.close()
    waiter.close()
    assert all(p.released for p in executor.pending)


def test_closing_answers_what_was_queued_and_refuses_what_comes_after(minilm_folder: Path) -> None:
    thread, executor = EngineThread(FakeDevice()), FakeExecutor()
    engine = engine_on(thread, executor, minilm_folder)
    steps = [engine.step(batch_of(i), Lane.BULK) for i in range(1, 30)]
    thread.close()
    assert all(s.done() for s in steps) and not thread.alive
    with pytest.raises(HedgerowError, match="closed"):
        engine.step(batch_of(1), Lane.QUERY)


def test_a_callback_that_raises_does_not_end_the_engine(minilm_folder: Path) -> None:
    thread, executor = EngineThread(FakeDevice()), FakeExecutor()
    engine = engine_on(thread, executor, minilm_folder)
    executor.gates[1] = threading.Event()
    bad = engine.step(batch_of(1), Lane.QUERY)
    bad.add_done_callback(lambda: 1 / 0)
    executor.gates[1].set()
    assert engine.step(batch_of(2), Lane.QUERY).result().rows[0][0][0] == 2
    thread.close()


class BriefExecutor(FakeExecutor):
    """Batches of up to two tokens may run on the thread that asks for them."""

    brief_tokens = 2

    def __init__(self) -> None:
        super().__init__()
        self.threads: list[int] = []

    def launch(self, batch: RaggedBatch, heads: Any) -> Pending:
        self.threads.append(threading.get_ident())
        return super().launch(batch, heads)


def test_a_brief_query_runs_on_the_thread_that_asks_and_nothing_else_does(
    minilm_folder: Path,
) -> None:
    thread, executor = EngineThread(FakeDevice()), BriefExecutor()
    engine = engine_on(thread, executor, minilm_folder)
    query = engine.step(batch_of(1), Lane.QUERY)
    assert query.done() and query.result().rows[0][0][0] == 1
    long = RaggedBatch.of([[2, 2, 2]], OutputSpec(normalize=False))
    assert engine.step(long, Lane.QUERY).result().rows[0][0][0] == 2
    assert engine.step(batch_of(3), Lane.BULK).result().rows[0][0][0] == 3
    here = threading.get_ident()
    assert [t == here for t in executor.threads] == [True, False, False]
    thread.close()
    with pytest.raises(HedgerowError, match="closed"):
        engine.step(batch_of(4), Lane.QUERY)


class ExpectingExecutor(FakeExecutor):
    """Counts what it was told to expect."""

    expected = 0

    def expect(self) -> None:
        self.expected += 1


def test_an_executor_with_sleepers_hears_of_each_query_before_it_comes(minilm_folder: Path) -> None:
    thread, executor = EngineThread(FakeDevice()), ExpectingExecutor()
    engine = engine_on(thread, executor, minilm_folder)
    for lane, expected in ((Lane.QUERY, 1), (Lane.BULK, 1), (Lane.RERANK, 2)):
        engine.step(batch_of(1), lane).result()
        assert executor.expected == expected
    thread.close()


def test_a_brief_query_never_runs_beside_another_pass_nor_before_an_older_one(
    minilm_folder: Path,
) -> None:
    thread, executor = EngineThread(FakeDevice()), BriefExecutor()
    engine = engine_on(thread, executor, minilm_folder)
    executor.gates[1] = threading.Event()
    first = engine.step(batch_of(1), Lane.BULK)
    assert executor.running.wait(10)
    second = engine.step(batch_of(2), Lane.QUERY)
    assert not second.done()
    executor.gates[1].set()
    assert first.result().rows[0][0][0] == 1 and second.result().rows[0][0][0] == 2
    assert executor.log == [1, 2]
    thread.close()
