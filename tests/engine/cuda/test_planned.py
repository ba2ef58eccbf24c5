"""Attention that is planned on the host: whose lengths a pass computes with, races included."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from hedgerow_engine.attention.base import AttentionSpec
from hedgerow_engine.device.cuda import forward
from hedgerow_engine.device.cuda.attention import (
    Kernels,
    KeyAttention,
    trial_inputs,
    trial_lengths,
)
from hedgerow_engine.device.cuda.executor import CudaExecutor
from hedgerow_engine.device.cuda.rehearsal import Rehearsal
from hedgerow_engine.device.cuda.staging import Slot, StagingRing
from hedgerow_engine.graphs import CaptureError
from hedgerow_shared.ragged import RaggedBatch
from tests.engine.cuda.conftest import VOCAB, batch_of
from tests.engine.cuda.planned import PlanningCard, PlanningStream, open_planned
from tests.engine.cuda.test_overlap import batches, of_one_shape, overlapped, synchronous, worst
from tests.engine.tiny import save, seeded, transformers, write_modules

RNG = np.random.default_rng(5)
SPEC = AttentionSpec(4, 2, 64, 0.125, causal=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT with heads of 64, which FlashInfer has."""
    config = transformers.BertConfig(
        vocab_size=VOCAB,
        hidden_size=128,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=300,
        pad_token_id=1,
    )
    made = save(tmp_path_factory.mktemp("cuda") / "planned", seeded(transformers.BertModel, config))
    write_modules(made, "Transformer", "Pooling", "Normalize")
    return made


@pytest.fixture
def right(folder: Path, monkeypatch: pytest.MonkeyPatch) -> CudaExecutor:
    """The same model on a card of its own that nobody hurries."""
    return open_planned(PlanningCard(), folder, monkeypatch)


def pair_of_launches(executor: CudaExecutor, pair: list[RaggedBatch]) -> list[np.ndarray]:
    """Both queued before the card does anything."""
    return [
        pending.wait().unit.copy()  # type: ignore[union-attr]
        for pending in [executor.launch(batch, ("embed",)) for batch in pair]
    ]


def test_overlapping_planned_passes_give_the_synchronous_answers(
    folder: Path, right: CudaExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    todo = batches(21, 300)
    want = synchronous(right, todo)
    card = PlanningCard()
    executor = open_planned(card, folder, monkeypatch)
    assert worst(overlapped(executor, card, todo, seed=3), want) == 0.0
    assert executor.attention == right.attention == "flashinfer_fa3"
    stats = executor.stats()
    assert stats["graph_replayed"] > 150 and stats["graph_capture_failed"] == 0


def test_planned_answers_are_those_of_the_oracle(
    folder: Path, right: CudaExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    todo = batches(22, 10)
    want = synchronous(right, todo)
    oracle = open_planned(PlanningCard(), folder, monkeypatch, dtype="float32")
    assert worst(synchronous(oracle, todo), want) < 0.02 and oracle.attention == "sdpa"


def test_one_plan_table_for_all_slots_is_caught(
    folder: Path, right: CudaExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted race: the next plan overwrites a table that still waits for its copy."""
    todo = of_one_shape(8, 60)
    want = synchronous(right, todo)
    honest = StagingRing.take

    def take(self: StagingRing) -> Slot:
        slot = honest(self)
        slot.tables = self.first.tables
        return slot

    monkeypatch.setattr(StagingRing, "take", take)
    card = PlanningCard()
    got = overlapped(open_planned(card, folder, monkeypatch), card, todo, seed=2)
    assert worst(got, want) > 1e-3, "the race must show, or the tests around prove nothing"


@pytest.mark.parametrize("marked", [True, False], ids=["marked", "planted race"])
def test_a_slot_is_not_reused_before_a_late_plan_was_copied(
    marked: bool, folder: Path, right: CudaExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A first pass plans while it is launched, behind the mark that its inputs were copied."""
    pairs = [[batch_of(RNG, n, 31 - n), batch_of(RNG, 31 - n, n)] for n in (5, 9)]
    pairs += [[batch_of(RNG, n, 120 - n), batch_of(RNG, 120 - n, n)] for n in (30, 50)]
    want = [synchronous(right, pair) for pair in pairs]
    if not marked:
        ignored = property(lambda self: False, lambda self, late: None)
        monkeypatch.setattr(forward.StreamForward, "planned_late", ignored, raising=False)
    off = 0.0
    for pair, expected in zip(pairs, want, strict=True):
        executor = open_planned(PlanningCard(), folder, monkeypatch, depth=0)
        off = max(off, worst(pair_of_launches(executor, pair), expected))
    assert off == 0.0 if marked else off > 1e-3


def test_a_key_with_a_graph_is_planned_however_many_keys_came_since(
    folder: Path, right: CudaExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    todo = of_one_shape(9, 6)
    want = synchronous(right, todo)
    monkeypatch.setattr(forward, "_STATES", 3)
    executor = open_planned(PlanningCard(), folder, monkeypatch)
    early = synchronous(executor, todo[:3])
    for length in (40, 70, 130, 200, 260):
        synchronous(executor, [batch_of(RNG, length)])
    assert worst([*early, *synchronous(executor, todo[3:])], want) == 0.0
    assert executor.stats()["graph_replayed"] == 4
    assert len(executor._urgent.forward._states) == 3


def test_the_key_that_was_not_hit_for_longest_is_forgotten_first(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forward, "_STATES", 2)
    executor = open_planned(PlanningCard(), folder, monkeypatch, graph_cache=0)
    for length in (40, 70, 40, 130):
        synchronous(executor, [batch_of(RNG, length)])
    assert [key.tokens for key in executor._urgent.forward._states] == [64, 192]


def test_a_first_pass_that_failed_is_run_again_before_its_capture(
    folder: Path, right: CudaExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = batch_of(RNG, 9, 14)
    want = synchronous(right, [batch])
    order: list[str] = []
    launch, capture = PlanningStream.launch, PlanningStream.capture

    def failing_once(self: PlanningStream, work: Callable[[], None]) -> None:
        order.append("launch")
        if len(order) == 1:
            raise RuntimeError("a kernel did not compile")
        launch(self, work)

    def noted(self: PlanningStream, work: Callable[[], None]) -> object:
        order.append("capture")
        return capture(self, work)

    monkeypatch.setattr(PlanningStream, "launch", failing_once)
    monkeypatch.setattr(PlanningStream, "capture", noted)
    executor = open_planned(PlanningCard(), folder, monkeypatch)
    with pytest.raises(RuntimeError):
        executor.launch(batch, ("embed",))
    assert worst(synchronous(executor, [batch]), want) == 0.0
    assert order == ["launch", "launch", "capture"]
    assert executor.stats()["graph_capture_failed"] == 0


def kernels(log: list[str]) -> Kernels:
    return Kernels(
        Rehearsal(),
        dtype=torch.bfloat16,
        installed=frozenset({"varlen", "sdpa"}),
        wanted="auto",
        log=log.append,
    )


def test_no_kernel_is_chosen_or_tried_inside_a_capture() -> None:
    log: list[str] = []
    attention = KeyAttention(kernels(log), trial_lengths(Rehearsal()))
    attention.capturing = True
    q, k, v = trial_inputs(Rehearsal(), SPEC, torch.bfloat16)
    with pytest.raises(CaptureError):
        attention.run(q, k, v, SPEC, None)
    assert log == []
    attention.capturing = False
    assert attention.run(q, k, v, SPEC, None).shape == (16, 256)


def test_a_backend_is_not_blamed_for_a_full_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """Left out once, it would be left out until the worker ends."""
    log: list[str] = []
    chosen = kernels(log)

    def full(*args: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 2 GiB")

    monkeypatch.setattr(chosen, "_try", full)
    q, k, v = trial_inputs(Rehearsal(), SPEC, torch.bfloat16)
    with pytest.raises(torch.OutOfMemoryError):
        KeyAttention(chosen, trial_lengths(Rehearsal())).run(q, k, v, SPEC, None)
    assert log == [] and not chosen._have.failed
