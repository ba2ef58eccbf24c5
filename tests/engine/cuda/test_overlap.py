"""Two batches on a card at once, for a thousand steps; and what a planted race looks like."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest

from hedgerow_engine.device.cuda.executor import CudaExecutor
from hedgerow_engine.device.cuda.rehearsal import Rehearsal
from hedgerow_engine.device.cuda.staging import Slot, StagingRing
from hedgerow_shared.ragged import RaggedBatch
from tests.engine.cuda.conftest import OpenExecutor, batch_of

STEPS, DEPTH = 1000, 2


def batches(seed: int, steps: int) -> list[RaggedBatch]:
    """Different lengths at every step: 1 to 5 sequences of 1 to 40 tokens."""
    rng = np.random.default_rng(seed)
    return [batch_of(rng, *rng.integers(1, 40, rng.integers(1, 6))) for _ in range(steps)]


def of_one_shape(seed: int, steps: int) -> list[RaggedBatch]:
    """Other lengths at every step, but always the bucket of 32 tokens and four slots."""
    rng = np.random.default_rng(seed)
    todo: list[RaggedBatch] = []
    for total in rng.integers(17, 33, steps):
        first = int(rng.integers(1, total))
        todo.append(batch_of(rng, first, int(total) - first))
    return todo


def synchronous(executor: CudaExecutor, todo: list[RaggedBatch]) -> list[np.ndarray]:
    answers: list[np.ndarray] = []
    for batch in todo:
        pending = executor.launch(batch, ("embed",))
        unit = pending.wait().unit
        assert unit is not None
        answers.append(unit.copy())
        pending.release()
    return answers


def overlapped(
    executor: CudaExecutor, card: Rehearsal, todo: list[RaggedBatch], seed: int
) -> list[np.ndarray]:
    """At most DEPTH batches in flight; the card runs a random number of operations meanwhile."""
    rng = np.random.default_rng(seed)
    flying: deque = deque()
    answers: list[np.ndarray] = []

    def settle() -> None:
        pending = flying.popleft()
        answers.append(pending.wait().unit.copy())
        pending.release()

    for batch in todo:
        if len(flying) == DEPTH:
            settle()
        flying.append(executor.launch(batch, ("embed",)))
        for stream in card.streams:
            stream.advance(int(rng.integers(0, 4)))
    while flying:
        settle()
    return answers


def worst(got: list[np.ndarray], want: list[np.ndarray]) -> float:
    return max(float(np.abs(g - w).max()) for g, w in zip(got, want, strict=True))


@pytest.fixture(scope="module")
def todo() -> list[RaggedBatch]:
    return batches(1, STEPS)


def test_a_thousand_overlapping_steps_give_the_synchronous_answers(
    open_executor: OpenExecutor, todo: list[RaggedBatch]
) -> None:
    card = Rehearsal()
    executor = open_executor(card)
    got = overlapped(executor, card, todo, seed=2)
    assert worst(got, synchronous(open_executor(Rehearsal()), todo)) == 0.0
    stats = executor.stats()
    assert stats["graph_replayed"] > 0.8 * STEPS and stats["graph_captured"] >= 8


def test_a_ring_of_one_slot_without_its_gate_is_caught(
    open_executor: OpenExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted race: host buffers are rewritten while their copy still waits."""

    def ungated(self: StagingRing, slot: Slot) -> None:
        return

    monkeypatch.setattr(StagingRing, "gate", ungated)
    card = Rehearsal()
    executor = open_executor(card, depth=0)  # depth + 1 slots: one
    some = of_one_shape(8, 100)
    got = overlapped(executor, card, some, seed=2)
    monkeypatch.undo()
    want = synchronous(open_executor(Rehearsal()), some)
    assert worst(got, want) > 0.01, "the race must show, or the test above proves nothing"


def test_a_ring_of_one_slot_with_its_gate_is_only_slow(
    open_executor: OpenExecutor, todo: list[RaggedBatch]
) -> None:
    card = Rehearsal()
    executor = open_executor(card, depth=0)
    some = todo[:200]
    got = overlapped(executor, card, some, seed=3)
    assert worst(got, synchronous(open_executor(Rehearsal()), some)) == 0.0
    assert executor.stats()["staging_waits"] > 100


def test_depth_plus_one_slots_never_wait(
    open_executor: OpenExecutor, todo: list[RaggedBatch]
) -> None:
    card = Rehearsal()
    executor = open_executor(card, depth=DEPTH)
    overlapped(executor, card, todo[:200], seed=4)
    assert executor.stats()["staging_waits"] == 0


def test_an_answer_outlives_the_passes_after_it(open_executor: OpenExecutor) -> None:
    """Its pinned rows are its own until they are released."""
    card = Rehearsal()
    executor = open_executor(card)
    todo = batches(5, 8)
    want = synchronous(open_executor(Rehearsal()), todo)
    pendings = [executor.launch(batch, ("embed",)) for batch in todo]
    passes = [pending.wait() for pending in pendings]
    for got, right in zip(passes, want, strict=True):
        assert got.unit is not None and np.array_equal(got.unit, right)


def test_nothing_is_there_before_its_event(open_executor: OpenExecutor) -> None:
    card = Rehearsal()
    executor = open_executor(card)
    executor.launch(batches(6, 1)[0], ("embed",)).wait()
    stream = card.streams[0]
    assert stream.queued == 0
    pending = executor.launch(batches(7, 1)[0], ("embed",))
    queued = stream.queued
    assert queued >= 5  # copy in, mark, pass, copy out, mark
    stream.advance(queued - 1)
    assert stream.queued == 1
    pending.wait()
    assert stream.queued == 0
