"""Graphs of a lane: what is captured, evicted and reset when, and what memory trouble costs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from hedgerow_engine import buckets
from hedgerow_engine.attention.choose import Have
from hedgerow_engine.device.cuda.executor import CudaExecutor
from hedgerow_engine.device.cuda.inflection import inflection
from hedgerow_engine.device.cuda.lane import CudaLane
from hedgerow_engine.device.cuda.rehearsal import Rehearsal, RehearsalGraph, RehearsalStream
from hedgerow_engine.graphs import GraphRunner, Key
from tests.engine.cuda.conftest import OpenExecutor, batch_of
from tests.engine.test_graph_runner import FakeForward

RNG = np.random.default_rng(3)


def unit(executor: CudaExecutor, *lengths: int, seed: int = 0) -> np.ndarray:
    pending = executor.launch(batch_of(np.random.default_rng(seed), *lengths), ("embed",))
    answer = pending.wait().unit
    assert answer is not None
    rows = answer.copy()
    pending.release()
    return rows


def test_buckets_are_16_32_then_64s_to_512_then_256s() -> None:
    seen = sorted({buckets.cuda_tokens(n) for n in range(1, 2049)})
    assert seen == [16, 32, *range(64, 513, 64), *range(768, 2049, 256)]
    assert [buckets.cuda_slots(n, n) for n in (1, 2, 3, 4, 7, 8)] == [2, 4, 4, 8, 8, 16]
    assert buckets.cuda_slots(2, 9) == 16  # spans need rows too


def test_first_hit_is_eager_second_captures_then_replays_and_all_agree(
    open_executor: OpenExecutor,
) -> None:
    card = Rehearsal()
    executor = open_executor(card)
    answers = [unit(executor, 5, 9) for _ in range(4)]
    assert all(np.array_equal(answers[0], a) for a in answers[1:])
    stats = executor.stats()
    assert (stats["graph_eager"], stats["graph_captured"], stats["graph_replayed"]) == (1, 1, 2)
    assert stats["graph_capture_ms"] > 0


def test_the_padding_does_not_change_a_row(open_executor: OpenExecutor) -> None:
    """Same bucket, other content and other padding beside it: equal bytes."""
    executor = open_executor(Rehearsal())
    rng = np.random.default_rng(9)
    alone = batch_of(rng, 6)
    first = executor.launch(alone, ("embed",)).wait().unit
    assert first is not None
    first = first.copy()
    executor.launch(batch_of(rng, 15), ("embed",)).wait()
    again = executor.launch(alone, ("embed",)).wait().unit
    assert again is not None and np.array_equal(first, again)


def test_very_short_queries_are_captured_too(open_executor: OpenExecutor) -> None:
    """The rule against padding above twice begins after the smallest bucket."""
    executor = open_executor(Rehearsal())
    for _ in range(3):
        unit(executor, 1)
    assert executor.stats()["graph_replayed"] == 1


def test_a_replay_above_twice_the_tokens_is_refused() -> None:
    runner = GraphRunner[str](FakeForward(), limit=4, max_tokens=512, smallest=16)
    for tokens in (256, 256, 256):
        runner.run(Key(256, 2), tokens)
    assert runner.run(Key(256, 2), 127) == "eager" and runner.counters.refused == 1
    assert runner.run(Key(256, 2), 128) == "replayed"


def test_an_evicted_graph_is_reset_only_after_its_last_replay_ran(
    open_executor: OpenExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[RehearsalGraph] = []
    original = RehearsalStream.capture

    def capture(self: RehearsalStream, work: object) -> RehearsalGraph:
        graph = original(self, work)  # type: ignore[arg-type]
        made.append(graph)
        return graph

    monkeypatch.setattr(RehearsalStream, "capture", capture)
    card = Rehearsal()
    executor = open_executor(card, graph_cache=1)
    unit(executor, 5)
    unit(executor, 5)
    flying = executor.launch(batch_of(RNG, 5), ("embed",))
    unit_40 = [executor.launch(batch_of(RNG, 40), ("embed",)) for _ in range(2)]
    first, second = made
    assert executor.stats()["graph_evicted"] == 1
    assert first.alive and first.queued >= 1  # evicted, but a replay is still in flight
    for pending in (flying, *unit_40):
        pending.wait()
    assert first.alive  # nobody swept yet
    unit(executor, 40)
    assert not first.alive and second.alive


def test_a_shape_that_comes_back_after_its_graph_went_runs_eagerly_before_its_capture(
    open_executor: OpenExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels are bound and planned in eager passes; inside a capture that would be recorded."""
    order: list[str] = []
    for name in ("launch", "capture"):
        original = getattr(RehearsalStream, name)

        def noted(
            self: RehearsalStream, work: object, name: str = name, original: object = original
        ) -> object:
            order.append(name)
            return original(self, work)  # type: ignore[operator]

        monkeypatch.setattr(RehearsalStream, name, noted)
    executor = open_executor(Rehearsal(), graph_cache=1)
    for length in (5, 5, 40, 40):
        unit(executor, length)
    order.clear()
    unit(executor, 5)
    assert order == ["launch", "capture"]


def test_two_lanes_share_no_staging_no_inputs_and_no_plan_tables(
    open_executor: OpenExecutor,
) -> None:
    """Their passes run at the same time: one buffer in common is a race."""
    executor = open_executor(Rehearsal())
    executor._parts.kernels._have = Have(arch=90, installed=frozenset({"flashinfer_fa2", "sdpa"}))
    lanes = [CudaLane(executor._parts, urgent=u, max_tokens=512) for u in (True, False)]

    def buffers(lane: CudaLane) -> set[int]:
        slots = lane.ring._slots
        pinned = [t for s in slots for t in (s.buffer, *s.tables)]
        static = [lane._static.buffer, *lane._static.tables]
        rows = lane._blocks_of(("embed",)).rows
        assert rows is not None and len(static) == 3 and len(pinned) == 9
        return {t.data_ptr() for t in [*pinned, *static, rows._rows, *rows._free]}

    assert not buffers(lanes[0]) & buffers(lanes[1])


def test_short_memory_lets_the_oldest_graph_go_one_at_a_time(open_executor: OpenExecutor) -> None:
    card = Rehearsal()
    executor = open_executor(card)
    for length in (5, 20, 40):
        unit(executor, length)
        unit(executor, length)
    card.free = 0
    unit(executor, 70)
    unit(executor, 70)  # would be captured
    stats = executor.stats()
    assert stats["graphs"] == 2 and stats["graph_evicted"] == 1 and stats["graph_refused"] == 1
    card.free = 1 << 34
    unit(executor, 70)
    assert executor.stats()["graph_captured"] == 4


@pytest.mark.parametrize("failing", ["failing_captures", "failing_replays"])
def test_a_capture_or_first_replay_that_fails_is_answered_eagerly_and_counted(
    open_executor: OpenExecutor, failing: str
) -> None:
    card = Rehearsal()
    executor = open_executor(card)
    right = unit(executor, 12)
    setattr(card, failing, 1)
    assert np.array_equal(unit(executor, 12), right)
    stats = executor.stats()
    assert stats["graph_capture_failed"] == 1 and stats["graphs"] == 0
    assert np.array_equal(unit(executor, 12), right)
    assert executor.stats()["graph_captured"] == 1
    assert len(executor._urgent.forward.graveyard) == 0


def test_a_shape_that_keeps_failing_is_left_alone_until_memory_comes_free(
    open_executor: OpenExecutor,
) -> None:
    card = Rehearsal()
    executor = open_executor(card, graph_cache=1)
    unit(executor, 12)
    card.failing_captures = 99
    for _ in range(6):
        unit(executor, 12)
    assert executor.stats()["graph_capture_failed"] == 2
    card.failing_captures = 0
    for length in (40, 40, 90, 90):  # the second graph evicts the first
        unit(executor, length)
    unit(executor, 12)
    assert executor.stats()["graph_captured"] == 3


def test_out_of_memory_in_a_pass_drops_the_graphs_and_answers(open_executor: OpenExecutor) -> None:
    card = Rehearsal()
    executor = open_executor(card)
    for _ in range(3):
        unit(executor, 5)
    right = unit(open_executor(Rehearsal()), 60)
    card.failing_launches = 1
    assert np.array_equal(unit(executor, 60), right)
    stats = executor.stats()
    assert stats["out_of_memory"] == 1 and stats["graphs"] == 0


def test_a_batch_beyond_the_static_buffers_grows_them_and_earlier_shapes_still_work(
    open_executor: OpenExecutor,
) -> None:
    executor = open_executor(Rehearsal())
    before, *_ = [unit(executor, 5, 9) for _ in range(3)]
    many = unit(executor, *([3] * 90))  # more sequences than there were slots
    assert many.shape == (90, 32) and np.isfinite(many).all()
    long = unit(executor, *([290] * 30))  # more tokens than there was room for
    assert long.shape == (30, 32) and np.isfinite(long).all()
    assert np.array_equal(unit(executor, 5, 9), before)


def test_the_inflection_point_is_the_last_size_whose_launches_cost_more() -> None:
    launch = 6e-3  # a pass costs the host the same at any size

    def card(ms_per_1000: float) -> int:
        return inflection(lambda n: (launch, ms_per_1000 * n * 1e-6), highest=8192)

    assert card(0.1) == 8192
    assert card(2.0) == 2048
    assert card(1000.0) == 512  # short passes are always worth a graph
    assert inflection(lambda n: (0.0, 0.0), highest=8192) == 512  # nothing could be measured
    assert inflection(lambda n: (launch, 0.0), highest=100) == 100


def test_the_point_is_configured_or_measured_and_shown(open_executor: OpenExecutor) -> None:
    executor = open_executor(Rehearsal(), graph_inflection=100)
    executor.warm(0.0)
    assert executor.stats()["graph_inflection_tokens"] == 100
    for _ in range(3):
        unit(executor, 100, 50)
    assert executor.stats()["graph_captured"] == 0
    log: list[str] = []
    measured = open_executor(Rehearsal(at_once=True), log=log, graph_inflection=None)
    measured.warm(0.1)
    assert measured.stats()["graph_inflection_tokens"] in (512, 1024, 2048, 4096, 8192)
    assert any(line.startswith("graphs up to") for line in log)


def test_hot_shapes_of_an_earlier_worker_are_recorded_while_idle(
    open_executor: OpenExecutor, tmp_path: Path
) -> None:
    first = open_executor(Rehearsal(), graph_hits=str(tmp_path))
    for _ in range(5):
        unit(first, 20)
    unit(first, 100, 30)
    first.close()
    (file,) = tmp_path.glob("*.json")
    hits = json.loads(file.read_text())["hits"]
    assert hits[0] == [32, 2, ["embed"], 5]
    second = open_executor(Rehearsal(), graph_hits=str(tmp_path))
    done = [second.warm_next() for _ in range(4)]
    assert done == [True, True, False, False]
    assert second.stats()["graph_warmed"] == 2
    unit(second, 20)
    assert second.stats()["graph_replayed"] == 1 and second.stats()["graph_eager"] == 0


@pytest.mark.parametrize(
    "content", ["", "[]", '{"hits": [[1]]}', '{"hits": [[16, 2, ["fly"], 3]]}', '{"hits": 3}']
)
def test_a_broken_hit_file_is_ignored(
    content: str, open_executor: OpenExecutor, tmp_path: Path
) -> None:
    first = open_executor(Rehearsal(), graph_hits=str(tmp_path))
    unit(first, 20)
    first.close()
    (file,) = tmp_path.glob("*.json")
    file.write_text(content)
    assert open_executor(Rehearsal(), graph_hits=str(tmp_path)).warm_next() is False


def test_a_folder_that_cannot_be_written_is_no_error(open_executor: OpenExecutor) -> None:
    executor = open_executor(Rehearsal(), graph_hits="/proc/nowhere")
    unit(executor, 20)
    executor.close()


def test_after_running_out_of_memory_a_shape_is_not_recorded_at_its_very_next_hit(
    open_executor: OpenExecutor,
) -> None:
    card = Rehearsal()
    executor = open_executor(card)
    for _ in range(2):
        unit(executor, 5)
    card.failing_launches = 1
    unit(executor, 60)
    unit(executor, 5)
    assert executor.stats()["graph_captured"] == 1
    unit(executor, 5)
    assert executor.stats()["graph_captured"] == 2


def test_shapes_of_bulk_are_recorded_again_in_the_lane_of_bulk(
    open_executor: OpenExecutor, tmp_path: Path
) -> None:
    first = open_executor(Rehearsal(), graph_hits=str(tmp_path))
    unit(first, 20)
    for _ in range(4):
        first.launch_bulk(batch_of(RNG, 200), ("embed",)).wait()
    first.close()
    (file,) = tmp_path.glob("*.json")
    content = json.loads(file.read_text())
    assert content["hits"] == [[32, 2, ["embed"], 1]]
    assert content["bulk"] == [[256, 2, ["embed"], 4]]
    second = open_executor(Rehearsal(), graph_hits=str(tmp_path))
    assert [second.warm_next() for _ in range(3)] == [True, True, False]
    assert second._bulk is not None
    assert [key.tokens for key in second._bulk.graphs._graphs] == [256]
    assert [key.tokens for key in second._urgent.graphs._graphs] == [32]
    second.launch_bulk(batch_of(RNG, 200), ("embed",)).wait()
    assert second.stats()["graph_replayed"] == 1


def test_with_one_stream_the_shapes_of_bulk_are_recorded_there(
    open_executor: OpenExecutor, tmp_path: Path
) -> None:
    first = open_executor(Rehearsal(), graph_hits=str(tmp_path))
    first.launch_bulk(batch_of(RNG, 200), ("embed",)).wait()
    first.close()
    second = open_executor(Rehearsal(), graph_hits=str(tmp_path), priorities=False)
    assert second.warm_next() and second._bulk is None and len(second._urgent.graphs) == 1


def test_an_inflection_point_beyond_what_graphs_are_made_for_is_lowered_and_said(
    open_executor: OpenExecutor,
) -> None:
    log: list[str] = []
    executor = open_executor(Rehearsal(), log=log, graph_inflection=20000)
    executor.warm(0.0)
    assert executor.stats()["graph_inflection_tokens"] == 8192
    assert sum("20000" in line and "8192 it is" in line for line in log) == 1
