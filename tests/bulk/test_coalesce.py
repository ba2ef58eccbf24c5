"""The same asked twice at once: computed once, and never at the price of an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from hedgerow_gateway.cache import Cache
from hedgerow_gateway.coalesce import Coalescer
from hedgerow_gateway.dispatch import Done, Work
from hedgerow_gateway.tokenizer.encoded import Encoded, from_ids
from hedgerow_scheduler.fake_engine import fake_vector
from hedgerow_shared.errors import (
    BadChunkError,
    DeadlineError,
    HedgerowError,
    OverloadedError,
    RetryableError,
    RowError,
    WorkerLostError,
)
from hedgerow_shared.ragged import Lane, OutputSpec, Row

DIMENSION = 4


class Fleet:
    """Answers when told to; keeps what it was asked.

    errors: what dispatches raise, the oldest first; rows: what the first one gives, by first id
    """

    def __init__(self) -> None:
        self.asked: list[list[list[int]]] = []
        self.given_up = 0
        self.go = asyncio.Event()
        self.errors: list[HedgerowError] = []
        self.rows: dict[int, Row] = {}
        self.fingerprint = "e1"

    async def dispatch(self, work: Work) -> Done:
        sequences = [work.encoded.batch(i, i + 1, work.output).input_ids.tolist()
                     for i in range(work.encoded.num_seqs)]  # fmt: skip
        self.asked.append(sequences)
        rows = self.rows if len(self.asked) == 1 else {}
        fingerprint = self.fingerprint
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.given_up += 1
            raise
        if self.errors:
            raise self.errors.pop(0)
        found = [rows.get(s[0], (fake_vector(s, DIMENSION),)) for s in sequences]
        return Done(found, fingerprint, 3.0, 4.0)


def split(part: Encoded) -> list[tuple[int, int]]:
    """Chunks of up to 4 sequences."""
    return [(i, min(i + 4, part.num_seqs)) for i in range(0, part.num_seqs, 4)]


def work(*sequences: Sequence[int], lane: Lane = Lane.QUERY, **change: object) -> Work:
    encoded = from_ids([list(s) for s in sequences], 512)
    made = Work(
        model="m", encoded=encoded, output=OutputSpec(), lane=lane, chunks=split(encoded),
        deadline_s=asyncio.get_running_loop().time() + 5, fingerprint="g",
    )  # fmt: skip
    return replace(made, **change)


@pytest.fixture
async def fleet():
    return Fleet()


@pytest.fixture
async def coalescer(fleet):
    return Coalescer(fleet.dispatch, engines=lambda _: {"e1"})


def start(coalescer: Coalescer, asked: Work) -> asyncio.Task[Done]:
    return asyncio.create_task(coalescer.run(asked, split))


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def assert_right(done: Done, *sequences: Sequence[int]) -> None:
    assert len(done.rows) == len(sequences)
    for row, ids in zip(done.rows, sequences, strict=True):
        assert isinstance(row, tuple), row
        assert np.array_equal(row[0], fake_vector(ids, DIMENSION))


async def test_the_same_query_from_many_at_once_is_computed_once(fleet, coalescer):
    tasks = [start(coalescer, work([5, 6])) for _ in range(20)]
    await turns()
    fleet.go.set()
    for done in await asyncio.gather(*tasks):
        assert_right(done, [5, 6])
        assert done.fingerprint == "e1"
    assert fleet.asked == [[[5, 6]]]
    assert coalescer.figures()["sequences_joined"] == 19


async def test_switched_off_everything_is_asked_for(fleet):
    coalescer = Coalescer(fleet.dispatch, engines=lambda _: {"e1"}, enabled=False)
    tasks = [start(coalescer, work([5], [5])) for _ in range(3)]
    await turns()
    fleet.go.set()
    await asyncio.gather(*tasks)
    assert fleet.asked == [[[5], [5]]] * 3


async def test_what_is_answered_is_forgotten_when_nothing_is_kept(fleet, coalescer):
    fleet.go.set()
    for _ in range(3):
        assert_right(await coalescer.run(work([5]), split), [5])
    assert len(fleet.asked) == 3


async def test_a_request_asks_only_for_what_nobody_asked_for_and_gets_all_in_order(
    fleet, coalescer
):
    first = start(coalescer, work([1], [2]))
    await turns()
    second = start(coalescer, work([3], [2], [3], [1], [4], [3]))
    await turns()
    fleet.go.set()
    assert_right(await first, [1], [2])
    assert_right(await second, [3], [2], [3], [1], [4], [3])
    assert fleet.asked == [[[1], [2]], [[3], [4]]]


DIFFERENT = {
    "output": {"output": OutputSpec(dimensions=(2,))},
    "model": {"model": "other"},
    "fingerprint": {"fingerprint": "another tokenizer"},
}


@pytest.mark.parametrize("case", DIFFERENT, ids=str)
async def test_what_differs_in_more_than_the_text_is_not_the_same(fleet, coalescer, case):
    tasks = [start(coalescer, work([1])), start(coalescer, work([1], **DIFFERENT[case]))]
    await turns()
    fleet.go.set()
    await asyncio.gather(*tasks)
    assert len(fleet.asked) == 2


async def test_pairs_and_prompts_are_part_of_what_is_the_same(fleet, coalescer):
    plain = work([1, 2, 3])
    none = np.zeros(0, np.int32)
    tasks = [start(coalescer, plain)]
    for pairs, prompts in (([1], none), ([2], none), (none, [1]), (none, [2]), ([1], [2])):
        offsets = {
            "pair_start": np.array(pairs, np.int32),
            "prompt_len": np.array(prompts, np.int32),
        }
        tasks.append(start(coalescer, replace(plain, encoded=replace(plain.encoded, **offsets))))
    await turns()
    fleet.go.set()
    await asyncio.gather(*tasks)
    assert len(fleet.asked) == 6


async def test_the_first_to_leave_takes_nothing_from_the_others(fleet, coalescer):
    tasks = [start(coalescer, work([7])) for _ in range(3)]
    await turns()
    tasks[0].cancel()
    await turns()
    assert fleet.given_up == 0
    fleet.go.set()
    assert_right(await tasks[1], [7])
    assert_right(await tasks[2], [7])
    assert fleet.asked == [[[7]]]


async def test_the_last_to_leave_ends_the_work(fleet, coalescer):
    tasks = [start(coalescer, work([7])) for _ in range(3)]
    await turns()
    for count, task in enumerate(tasks):
        assert fleet.given_up == 0, f"{len(tasks) - count} still wait"
        task.cancel()
        await turns()
    assert fleet.given_up == 1
    later = start(coalescer, work([7]))
    await turns()
    fleet.go.set()
    assert_right(await later, [7])
    assert len(fleet.asked) == 2, "nobody joins what was given up"


async def test_a_large_request_that_leaves_ends_its_own_part_only(fleet, coalescer):
    query = start(coalescer, work([1]))
    await turns()
    large = start(coalescer, work(*[[n] for n in range(1, 12)]))
    await turns()
    large.cancel()
    await turns()
    assert fleet.given_up == 1
    fleet.go.set()
    assert_right(await query, [1])


async def test_a_query_does_not_wait_for_bulk_but_bulk_for_a_query(fleet, coalescer):
    bulk = start(coalescer, work([1], lane=Lane.BULK))
    await turns()
    query = start(coalescer, work([1]))
    await turns()
    assert len(fleet.asked) == 2
    other = start(coalescer, work([1], lane=Lane.BULK))
    await turns()
    assert len(fleet.asked) == 2
    fleet.go.set()
    for task in (bulk, query, other):
        assert_right(await task, [1])


async def test_nobody_waits_for_the_rest_of_a_large_request(fleet, coalescer):
    large = start(coalescer, work(*[[n] for n in range(9)]))
    await turns()
    query = start(coalescer, work([3]))
    await turns()
    assert len(fleet.asked) == 2
    fleet.go.set()
    assert_right(await query, [3])
    await large


@pytest.mark.parametrize(
    "error",
    [WorkerLostError("gone"), DeadlineError("its own time"), BadChunkError("another text of it")],
    ids=lambda e: type(e).__name__,
)
async def test_the_failure_of_another_is_not_mine_before_i_tried(fleet, coalescer, error):
    fleet.errors = [error]
    leader, follower = start(coalescer, work([1], [2])), start(coalescer, work([1], [3]))
    await turns()
    fleet.go.set()
    with pytest.raises(type(error)):
        await leader
    assert_right(await follower, [1], [3])


async def test_a_system_that_is_full_is_not_asked_again_by_those_who_waited(fleet, coalescer):
    fleet.errors = [OverloadedError("full", retry_after_s=0.3)]
    tasks = [start(coalescer, work([1])) for _ in range(5)]
    await turns()
    fleet.go.set()
    errors = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(e) for e in errors] == [OverloadedError] * 5
    assert {e.retry_after_s for e in errors} == {0.3}
    assert len({id(e) for e in errors}) == 5, "one object each: tracebacks do not mix"
    assert len(fleet.asked) == 1


async def test_a_row_that_failed_for_good_is_shared_and_one_that_may_be_tried_again_is_not(
    fleet, coalescer
):
    fleet.rows = {1: RowError("not a number"), 2: RetryableError("try again")}
    first = start(coalescer, work([1], [2], keep_going=True))
    await turns()
    second = start(coalescer, work([1], [2], keep_going=True))
    await turns()
    fleet.go.set()
    await first
    done = await second
    assert isinstance(done.rows[0], RowError)
    assert np.array_equal(done.rows[1][0], fake_vector([2], DIMENSION))
    assert fleet.asked == [[[1], [2]], [[2]]]


async def test_two_that_are_waited_for_may_end_in_any_order(fleet, coalescer):
    """The one waited for second is over before its turn comes."""
    first, second = start(coalescer, work([1, 2])), start(coalescer, work([3, 4]))
    await asyncio.sleep(0)
    both = start(coalescer, work([1, 2], [3, 4]))
    await asyncio.sleep(0)
    fleet.go.set()
    assert_right(await asyncio.wait_for(both, 5), [1, 2], [3, 4])
    assert_right(await first, [1, 2])
    assert_right(await second, [3, 4])
    assert fleet.asked == [[[1, 2]], [[3, 4]]]


async def test_one_that_is_given_up_before_its_turn_comes_is_asked_for_again(fleet, coalescer):
    first, second = start(coalescer, work([1, 2])), start(coalescer, work([3, 4]))
    await asyncio.sleep(0)
    both = start(coalescer, work([1, 2], [3, 4]))
    await asyncio.sleep(0.01)
    second.cancel()
    await asyncio.sleep(0.01)
    fleet.go.set()
    assert_right(await asyncio.wait_for(both, 5), [1, 2], [3, 4])
    assert_right(await first, [1, 2])
    assert fleet.asked == [[[1, 2]], [[3, 4]], [[3, 4]]]


async def test_whoever_waits_for_another_still_ends_at_its_own_time(fleet, coalescer):
    first = start(coalescer, work([1]))
    await turns()
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    with pytest.raises(DeadlineError):
        await coalescer.run(work([1], deadline_s=loop.time() + 0.1), split)
    assert loop.time() - began_s < 1.0
    assert fleet.given_up == 0
    fleet.go.set()
    assert_right(await first, [1])


async def test_rows_of_two_versions_of_a_model_never_share_an_answer(fleet, coalescer):
    first = start(coalescer, work([1]))
    await turns()
    fleet.fingerprint = "e2"
    second = start(coalescer, work([1], [2]))
    await turns()
    fleet.go.set()
    assert (await first).fingerprint == "e1"
    with pytest.raises(RetryableError, match="e1, e2"):
        await second


async def test_what_was_kept_is_not_asked_for_again_while_its_engine_serves(fleet):
    serving = {"e1"}
    coalescer = Coalescer(fleet.dispatch, engines=lambda _: serving, cache_bytes=1 << 20)
    fleet.go.set()
    await coalescer.run(work([1], [2]), split)
    assert_right(await coalescer.run(work([2], [1], [2]), split), [2], [1], [2])
    assert len(fleet.asked) == 1
    assert coalescer.figures()["cache_hits"] == 3
    serving.clear()
    serving.add("e2")
    fleet.fingerprint = "e2"
    done = await coalescer.run(work([1]), split)
    assert done.fingerprint == "e2" and len(fleet.asked) == 2


async def test_errors_are_not_kept(fleet):
    coalescer = Coalescer(fleet.dispatch, engines=lambda _: {"e1"}, cache_bytes=1 << 20)
    fleet.rows = {1: RowError("no")}
    fleet.go.set()
    for _ in range(2):
        await coalescer.run(work([1], keep_going=True), split)
    assert len(fleet.asked) == 2


def test_the_cache_never_holds_more_than_its_bytes_and_drops_what_was_used_least_lately():
    cache = Cache(10_000)
    for n in range(100):
        cache.put(b"%d" % n, (np.full(100, n, np.float32),), "e")
        cache.get(b"0", ["e"])
        assert cache.bytes <= 10_000
    assert cache.get(b"0", ["e"]) is not None
    assert cache.get(b"1", ["e"]) is None
    found = cache.get(b"99", ["e"])
    assert found is not None and found[0][0].tolist() == [99.0] * 100
    cache.put(b"large", (np.zeros(10_000, np.float32),), "e")
    assert cache.get(b"large", ["e"]) is None and cache.get(b"99", ["e"]) is not None
    cache.clear()
    assert cache.bytes == 0 and cache.get(b"99", ["e"]) is None


def test_what_is_kept_does_not_hold_the_whole_reply():
    whole = np.zeros((1000, 4), np.float32)
    cache = Cache(1 << 20)
    cache.put(b"a", (whole[3],), "e")
    kept = cache.get(b"a", ["e"])
    assert kept is not None and kept[0][0].base is None
