"""Known inputs, how like two answers are, and who may join whom."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hedgerow_scheduler.canary import LENGTHS, Canary, canary_of, known_inputs
from hedgerow_scheduler.fake_engine import FakeHost, FakeSettings
from hedgerow_scheduler.rollcall import Entry, Report, conflict
from hedgerow_shared.errors import RowError, StartupError
from hedgerow_shared.modelcard import read_card
from hedgerow_shared.ragged import OutputSpec, StepOutput
from tests.scheduler.worker_process import make_model

EMBED = OutputSpec()


def rows(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((4, 64)).astype(np.float32)


def canary(values: np.ndarray, task: str = "embed", gate: float = 0.9999) -> Canary:
    return Canary(task, values, gate)


def report(values: np.ndarray, fingerprint: str = "f1") -> Report:
    return Report(
        worker="w2",
        serving=True,
        fingerprint=fingerprint,
        rows=values.astype("<f4").tobytes(),
        shape=values.shape,
    )


@pytest.mark.parametrize(("vocab", "limit"), [(4, 512), (30_000, 512), (30_000, 8), (151_936, 1)])
def test_known_inputs_suit_every_vocabulary_and_length(vocab, limit):
    batch = known_inputs(vocab, limit, EMBED)
    assert batch.seqlens.tolist() == [min(length, limit) for length in LENGTHS]
    assert batch.input_ids.min() >= 0 and batch.input_ids.max() < vocab
    again = known_inputs(vocab, limit, EMBED)
    assert again.input_ids.tobytes() == batch.input_ids.tobytes()


def test_known_inputs_reach_into_the_whole_vocabulary():
    ids = known_inputs(30_000, 512, EMBED).input_ids
    assert len(set(ids.tolist())) > 120
    assert ids.max() > 25_000


def test_the_digest_is_that_of_every_byte():
    values = rows()
    other = values.copy()
    other[3, 63] = np.nextafter(other[3, 63], np.float32(9))
    assert canary(values).digest == canary(values.copy()).digest
    assert canary(values).digest != canary(other).digest


def test_likeness_is_the_lowest_cosine_of_all_rows():
    values = rows()
    other = values.copy()
    other[2] = -other[2]
    assert canary(values).likeness(values * 3) == pytest.approx(1)
    assert canary(values).likeness(other) == pytest.approx(-1)


def test_logits_are_compared_by_size_and_not_by_direction():
    logits = np.array([[2.0], [-3.0], [0.0], [9.0]], np.float32)
    assert canary(logits, "score").likeness(logits + np.float32(0.01)) > 0.98
    assert canary(logits, "score").likeness(logits * 2) < 0.5


def test_vectors_of_another_width_are_not_alike():
    assert canary(rows()).likeness(rows()[:, :32]) == 0


ROUNDED = rows() + np.float32(1e-4) * rows(1)
"""What another executor might give: alike to six digits, no byte the same."""


@pytest.mark.parametrize(
    ("theirs", "fingerprint", "said"),
    [
        pytest.param(rows(), "f1", "", id="the same"),
        pytest.param(ROUNDED, "f1", "", id="other bytes within the gate of one class"),
        pytest.param(rows(7), "f1", "computes wrongly", id="one fingerprint, other vectors"),
        pytest.param(ROUNDED, "f2", "one --dtype", id="the same weights in other numbers"),
        pytest.param(rows(), "f2", "one --dtype", id="another class that happens to be equal"),
        pytest.param(rows(7), "f2", "other weights", id="other weights"),
        pytest.param(rows()[:, :32], "f2", "other weights", id="another model"),
    ],
)
def test_who_may_join_whom(theirs, fingerprint, said):
    reason = conflict("m", Entry("f1", canary(rows())), report(theirs, fingerprint))
    assert said in reason and bool(reason) == bool(said)
    if reason:
        assert "w2" in reason and "--allow-mixed-fleet" in reason and "\n" not in reason


@pytest.fixture
def fake(tmp_path: Path):
    hosts = []

    def make(**settings):
        card = read_card(make_model(tmp_path / "m"))
        hosts.append(FakeHost({"m": card}, FakeSettings(ms_per_4096=0, floor_ms=0, **settings)))
        return hosts[-1].engines["m"]

    yield make
    for host in hosts:
        host.close()


def test_an_engine_s_canary_is_the_same_each_time(fake):
    first, second = canary_of("m", fake()), canary_of("m", fake())
    assert first.digest == second.digest
    assert first.rows.shape == (4, 32)
    assert first.gate == 0.9999
    assert first.likeness(canary_of("m", fake(skew=0.2)).rows) < 0.9


@pytest.mark.parametrize(
    ("row", "said"),
    [
        pytest.param((np.full(8, np.nan, np.float32),), "does not give numbers", id="nan"),
        pytest.param(RowError("no"), "fails on known inputs", id="an error"),
    ],
)
def test_a_model_without_numbers_does_not_start(fake, row, said):
    engine = fake()

    class Lazy:
        def result(self):
            return StepOutput([row] * 4)

        def release(self): ...

    engine.step = lambda batch, lane: Lazy()
    with pytest.raises(StartupError, match=said):
        canary_of("m", engine)
