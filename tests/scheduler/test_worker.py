"""The overlap turn on an engine whose steps complete when the test says."""

from __future__ import annotations

import numpy as np
import pytest

from hedgerow_scheduler.packer import Policy
from hedgerow_shared.errors import (
    BadInputError,
    CancelledError,
    DeadlineError,
    RowError,
    WorkerLostError,
)
from hedgerow_shared.ragged import Lane, RaggedBatch
from tests.scheduler.conftest import HandLazy, Rig


def test_a_query_on_an_idle_worker_starts_in_the_same_turn_of_the_loop(rig: Rig) -> None:
    rig.offer("a", 12, run=False)
    assert rig.loop.run() == 1
    assert [s.batch.num_tokens for s in rig.engine.steps] == [12]


def test_chunks_that_arrive_in_one_turn_share_a_batch(rig: Rig) -> None:
    for name in ("a", "b", "c"):
        rig.offer(name, 10, run=False)
    rig.loop.run()
    assert [s.batch.num_seqs for s in rig.engine.steps] == [3]
    rig.finish(0)
    assert rig.answered == ["a", "b", "c"]


def test_the_second_batch_starts_before_the_first_is_settled_and_the_third_waits(rig: Rig) -> None:
    events: list[str] = []
    for name in ("a", "b", "c"):
        held = rig.offer(name, 512)
        held.deliver = lambda reply: events.append(f"settle {reply.id}")
    assert len(rig.engine.steps) == 2, "depth is two: one runs, one is queued on the device"
    rig.engine.at_once = lambda lazy: events.append("start c")
    rig.worker.after_turn.append(lambda: events.append("end of turn"))
    rig.finish(0)
    assert events == ["start c", "settle a", "end of turn"]


def test_a_chunk_that_spans_batches_is_answered_once_when_its_last_row_settles(rig: Rig) -> None:
    rig.offer("long", 300, 300, 300, 300)
    assert [s.batch.seqlens.tolist() for s in rig.engine.steps] == [[300, 300], [300, 300]]
    rig.finish(0)
    assert rig.answered == []
    rig.finish(1)
    assert rig.answered == ["long"]
    assert rig.lengths(0) == [300] * 4, "the first rows outlive the buffer they came in"


def test_batches_that_finish_in_another_order_settle_in_that_order(rig: Rig) -> None:
    rig.offer("a", 512)
    rig.offer("b", 512)
    rig.finish(1)
    rig.finish(0)
    assert rig.answered == ["b", "a"]


def test_batches_that_both_finished_before_the_turn_settle_in_the_order_they_finished(
    rig: Rig,
) -> None:
    rig.offer("bulk", 512)
    rig.now += 0.010
    rig.offer("query", 512)
    for number in (1, 0):
        rig.now += 0.020
        rig.engine.steps[number].finish()
    rig.loop.run()
    assert rig.answered == ["query", "bulk"]
    assert [r.compute_ms for r in rig.replies] == pytest.approx([20.0, 20.0])


def test_a_step_that_is_over_when_it_returns_is_settled_in_the_turn_that_started_it(
    rig: Rig,
) -> None:
    rig.engine.at_once = HandLazy.finish
    rig.offer("a", 12, run=False)
    assert rig.loop.run() == 1
    assert rig.answered == ["a"] and rig.worker.is_idle


def test_an_answer_leaves_before_the_next_step_that_runs_on_the_loop(rig: Rig) -> None:
    rig.engine.at_once = HandLazy.finish
    for name in ("a", "b"):
        rig.offer(name, 512, run=False)
    rig.loop.run(1)
    assert rig.answered == ["a"] and len(rig.engine.steps) == 1
    rig.loop.run(1)
    assert rig.answered == ["a", "b"]


def test_a_step_that_fails_where_it_was_started_is_halved_like_any_other(rig: Rig) -> None:
    def poison(lazy: HandLazy) -> None:
        if 7 in lazy.batch.seqlens:
            lazy.fail(ValueError("poison"))
        else:
            lazy.finish()

    rig.engine.at_once = poison
    rig.offer("bad", 7, 2, 3)
    assert rig.lengths(0) == ["row_failed", 2, 3] and rig.worker.is_idle


def test_replies_carry_times_backlog_and_fingerprint(rig: Rig) -> None:
    rig.offer("a", 512)
    rig.now += 0.010
    rig.offer("b", 512)
    rig.offer("c", 100)
    rig.now += 0.020
    rig.finish(0)
    rig.now += 0.040
    rig.finish(1)
    a, b = rig.replies
    assert (a.worker, a.fingerprint) == ("w0", "engine0")
    assert (a.compute_ms, a.queue_ms) == pytest.approx((30.0, 0.0))
    # b was started at 10 ms but the device only came to it at 30 ms.
    assert (b.compute_ms, b.queue_ms) == pytest.approx((40.0, 20.0))
    assert (a.backlog_tokens, b.backlog_tokens) == (612, 100)


def test_a_row_error_stays_with_its_row(rig: Rig) -> None:
    rig.offer("a", 5, 6, run=False)
    rig.offer("b", 7)
    rig.finish(0, rows={1: BadInputError("no such token")})
    assert [rig.lengths(0), rig.lengths(1)] == [[5, "invalid_input"], [7]]


def test_expired_work_is_answered_and_never_started(rig: Rig) -> None:
    rig.offer("a", 512)
    rig.offer("b", 512)
    rig.offer("late", 10, ttl_ms=50)
    rig.now += 0.060
    rig.finish(0)
    assert rig.answered == ["late", "a"]
    assert isinstance(rig.replies[0].error, DeadlineError)
    assert len(rig.engine.steps) == 2


def test_a_result_that_comes_after_its_deadline_is_not_sent(rig: Rig) -> None:
    rig.offer("a", 10, ttl_ms=50)
    rig.now += 0.060
    rig.finish(0)
    assert isinstance(rig.replies[0].error, DeadlineError) and rig.replies[0].rows == []


def test_cancelled_work_that_waits_is_answered_and_never_runs(rig: Rig) -> None:
    rig.offer("a", 512)
    rig.offer("b", 512)
    rig.offer("c", 10)
    rig.worker.cancel(["c", "unknown"])
    assert rig.answered == ["c"] and isinstance(rig.replies[0].error, CancelledError)
    rig.finish(0)
    rig.finish(1)
    assert rig.answered == ["c", "a", "b"] and len(rig.engine.steps) == 2
    assert rig.worker.is_idle


def test_cancelled_work_on_the_device_is_answered_once_and_its_rows_are_dropped(rig: Rig) -> None:
    rig.offer("a", 300, 300, 300)
    rig.worker.cancel(["a"])
    rig.finish(0)
    assert rig.answered == ["a"]
    assert not rig.worker.is_idle, "its second batch is still on the device"
    rig.finish(1)
    assert rig.answered == ["a"] and rig.worker.is_idle


def test_two_chunks_of_one_id_are_both_answered(rig: Rig) -> None:
    rig.offer("same", 8)
    rig.offer("same", 9)
    rig.finish(0)
    rig.finish(1)
    assert [rig.lengths(0), rig.lengths(1)] == [[8], [9]]


def poisoned(token: int) -> object:
    """Steps finish at once; one that holds `token` raises."""

    def run(lazy: HandLazy) -> None:
        if token in lazy.batch.input_ids:
            lazy.error = RuntimeError("poison")
        else:
            lazy.finish()

    return run


@pytest.mark.parametrize("culprit", [0, 3, 6], ids=["first", "middle", "last"])
def test_a_step_that_raises_fails_only_the_sequence_that_did_it(rig: Rig, culprit: int) -> None:
    rig.engine.at_once = poisoned(57)
    lens = [50, 51, 52, 53, 54, 55, 56]
    lens[culprit] = 60
    for i in (0, 3):
        rig.offer(f"c{i}", *lens[i : i + 3], run=False)
    rig.offer("c6", lens[6])
    got = {r.id: rig.lengths(k) for k, r in enumerate(rig.replies)}
    want = [n if n != 60 else "row_failed" for n in lens]
    assert got == {"c0": want[:3], "c3": want[3:6], "c6": want[6:]}
    assert rig.dead == [] and rig.worker.is_idle


def test_a_step_that_fails_to_start_is_isolated_like_one_that_fails_later(rig: Rig) -> None:
    def refuse(lazy: HandLazy) -> None:
        if 60 in lazy.batch.seqlens:
            raise MemoryError
        lazy.finish()

    rig.engine.at_once = refuse
    rig.offer("a", 10, 60, 20)
    assert rig.lengths(0) == [10, "row_failed", 20]


def test_an_error_of_our_own_kind_keeps_its_code(rig: Rig) -> None:
    rig.offer("a", 10)
    rig.fail(0, BadInputError("this model does not score"))
    assert rig.lengths(0) == ["invalid_input"]


def test_neighbours_with_spans_and_offsets_survive_being_halved() -> None:
    rig = Rig()
    batch = RaggedBatch(
        np.arange(1, 13, dtype=np.int32),
        np.array([0, 4, 8, 12], np.int32),
        RaggedBatch.of([[1], [1], [1]]).outputs,
        np.array([2, 0, 3], np.int32),
        np.array([1, 1, 0], np.int32),
        np.array([[1, 0, 2], [1, 2, 4], [2, 0, 4]], np.int32),
    )
    rig.engine.at_once = poisoned(1)
    held = rig.offer("a", 4, 4, 4, run=False)
    held.batch = batch
    rig.loop.run()
    assert rig.lengths(0) == ["row_failed", 4, 4]
    last = rig.engine.steps[-1].batch
    assert [s.batch.input_ids.tolist() for s in rig.engine.steps[1:]] == [
        [1, 2, 3, 4],
        [5, 6, 7, 8, 9, 10, 11, 12],
    ]
    assert last.spans.tolist() == [[0, 0, 2], [0, 2, 4], [1, 0, 4]]
    assert (last.pair_start.tolist(), last.prompt_len.tolist()) == ([0, 3], [1, 0])


def test_the_same_text_twice_in_a_batch_is_run_once_and_answered_twice(rig: Rig) -> None:
    batch = RaggedBatch.of([[5, 6], [7], [5, 6]])
    for name in ("a", "b"):
        held = rig.offer(name, 2, 1, 2, run=False)
        held.batch = batch
    rig.loop.run()
    assert [s.batch.input_ids.tolist() for s in rig.engine.steps] == [[5, 6, 7]]
    rig.finish(0)
    assert [rig.lengths(k) for k in range(2)] == [[2, 1, 2]] * 2


def test_a_broken_engine_is_found_out_by_input_known_to_be_good(rig: Rig) -> None:
    def broken(lazy: HandLazy) -> None:
        lazy.error = RuntimeError("illegal memory access")

    rig.engine.at_once = broken
    rig.offer("a", *[4] * 16)
    assert len(rig.dead) == 1 and "illegal memory access" in rig.dead[0]


def test_a_flood_of_poison_does_not_end_a_healthy_engine(rig: Rig) -> None:
    rig.engine.at_once = poisoned(20)
    for i in range(40):
        rig.offer(f"p{i}", 20)
    assert rig.dead == []
    assert [rig.lengths(k) for k in range(40)] == [["row_failed"]] * 40


def test_a_batch_holds_one_model_and_goes_to_its_engine(rig: Rig) -> None:
    rig.offer("a", 10, run=False)
    rig.offer("b", 11, model="n", run=False)
    rig.offer("c", 12)
    assert [s.batch.seqlens.tolist() for s in rig.engine.steps] == [[10, 12]]
    assert [s.batch.seqlens.tolist() for s in rig.other.steps] == [[11]]


def test_a_query_waits_behind_bulk_unless_the_device_lets_it_pass() -> None:
    for overtake, started in ((False, 2), (True, 3)):
        rig = Rig(Policy(budget=512, bulk_pass=512), overtake=overtake)
        rig.offer("bulk", *[512] * 8, lane=Lane.BULK)
        rig.offer("query", 10)
        assert len(rig.engine.steps) == started
        if overtake:
            assert rig.engine.steps[2].lane is Lane.QUERY
            rig.offer("rerank", 10, lane=Lane.RERANK)
            rig.offer("more", 10)
            lanes = [s.lane.name for s in rig.engine.steps[3:]]
            assert lanes == ["RERANK", "QUERY"]
            rig.offer("too many", 10)
            assert len(rig.engine.steps) == 5


def test_bulk_starts_only_where_nothing_else_fills_the_device() -> None:
    rig = Rig(overtake=True)
    rig.offer("a", 512)
    rig.offer("b", 512)
    rig.offer("bulk", 10, lane=Lane.BULK)
    assert len(rig.engine.steps) == 2
    rig.finish(0)
    assert rig.engine.steps[2].lane is Lane.BULK


@pytest.mark.parametrize("pass_tokens", [256, 512])
def test_bulk_gets_its_floor_on_a_device_where_every_query_passes_it(pass_tokens: int) -> None:
    rig = Rig(Policy(budget=512, bulk_pass=512, bulk_pass_busy=pass_tokens), overtake=True)
    ran = {Lane.QUERY: 0, Lane.BULK: 0}
    offered = 0
    for step in range(400):
        for lane, waiting in ((Lane.QUERY, 1024), (Lane.BULK, 1024)):
            while rig.worker._packer.tokens(lane) < waiting:
                rig.offer(f"{lane.name}{offered}", 128, lane=lane, run=False)
                offered += 1
        rig.loop.run()
        running = rig.engine.running
        # The device prefers a query to bulk even when the bulk was started long before.
        first = next((s for s in running if s.lane is not Lane.BULK), running[0])
        ran[first.lane] += first.batch.num_tokens
        first.finish()
        rig.loop.run()
        if step > 20:
            assert ran[Lane.BULK] >= 0.2 * sum(ran.values()) - 1536
    assert ran[Lane.BULK] == pytest.approx(0.2 * sum(ran.values()), rel=0.05)


def test_where_a_pass_costs_the_same_a_part_filled_batch_waits_for_company() -> None:
    rig = Rig(Policy(budget=512, fill=True), eager=False)
    rig.offer("a", 10)
    rig.offer("b", 10)
    rig.offer("c", 20)
    assert [s.batch.num_tokens for s in rig.engine.steps] == [10]
    rig.finish(0)
    assert [s.batch.num_tokens for s in rig.engine.steps] == [10, 30]
    rig.offer("bulk", 512, 512, lane=Lane.BULK)
    assert [s.batch.num_tokens for s in rig.engine.steps] == [10, 30, 512], "a full one goes"


def test_where_every_token_costs_time_a_part_filled_batch_does_not_wait(rig: Rig) -> None:
    rig.offer("a", 10)
    rig.offer("b", 10)
    assert [s.batch.num_tokens for s in rig.engine.steps] == [10, 10]


def test_an_engine_that_finishes_at_once_is_not_flooded(rig: Rig) -> None:
    unsettled: list[int] = []
    rig.engine.at_once = lambda lazy: (lazy.finish(), unsettled.append(rig_unsettled(rig)))
    rig.offer("a", *[512] * 50)
    assert rig.lengths(0) == [512] * 50
    assert max(unsettled) <= 6


def rig_unsettled(rig: Rig) -> int:
    return sum(not s.released for s in rig.engine.steps)


def test_backlog_counts_what_a_chunk_of_a_lane_would_find_before_it(rig: Rig) -> None:
    rig.offer("a", 512)
    rig.offer("b", 512)
    rig.offer("query", 10)
    rig.offer("rerank", 20, lane=Lane.RERANK)
    rig.offer("bulk", 40, lane=Lane.BULK)
    assert [rig.worker.backlog_tokens(lane) for lane in Lane] == [1034, 1054, 1094]


def test_abandoned_work_is_answered_so_that_its_owners_can_go_elsewhere(rig: Rig) -> None:
    for name in ("a", "b", "c"):
        rig.offer(name, 512)
    rig.worker.abandon(WorkerLostError("going down"))
    assert sorted(rig.answered) == ["a", "b", "c"]
    assert all(isinstance(r.error, WorkerLostError) for r in rig.replies)
    rig.finish(0)
    assert len(rig.replies) == 3


def test_the_snapshot_names_backlog_and_age_by_lane_and_model(rig: Rig) -> None:
    rig.offer("a", 512)
    rig.offer("b", 512)
    rig.offer("c", 10, 20, lane=Lane.RERANK)
    rig.now += 2.0
    snapshot = rig.worker.snapshot()
    assert snapshot["models"]["m"]["lanes"]["rerank"] == {"backlog_tokens": 30, "oldest_s": 2.0}
    assert snapshot["models"]["n"]["lanes"]["query"] == {"backlog_tokens": 0, "oldest_s": 0.0}
    assert snapshot["models"]["m"]["engine"] == {"graph_replays": 7}
    assert (snapshot["backlog_tokens"], snapshot["in_flight"]) == (1054, 2)
    rig.finish(0)
    assert rig.worker.snapshot()["queue_ms_p99"] == 0.0
    assert rig.worker.snapshot()["compute_ms_p50"] == pytest.approx(2000.0)


def test_the_time_to_retry_follows_the_measured_rate(rig: Rig) -> None:
    rig.offer("a", 500)
    rig.now += 0.5
    rig.finish(0)
    rig.offer("b", *[500] * 10)
    assert rig.worker.retry_after_s() == pytest.approx(5.0)


def test_a_failed_row_is_an_error_that_does_not_leak_the_engine_s_words(rig: Rig) -> None:
    rig.offer("a", 10)
    rig.fail(0, RuntimeError("/secret/path"))
    (row,) = rig.replies[0].rows
    assert isinstance(row, RowError) and "secret" not in row.message
