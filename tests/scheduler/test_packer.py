"""The packer against its own rules, on histories that hypothesis makes up."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow_scheduler.packer import LANES, Packed, Packer, Policy, Waiting, costs_of
from hedgerow_shared.ragged import Lane

FOREVER = 1e9


def waiting(
    *seqlens: int,
    lane: Lane = Lane.QUERY,
    model: str = "m",
    at: float = 0.0,
    until: float = FOREVER,
    quadratic: float = 0.0,
) -> Waiting:
    lens = list(seqlens)
    return Waiting(lane, model, lens, costs_of(lens, quadratic), at, until)


def sequences(packed: Packed[Waiting]) -> list[tuple[Waiting, int]]:
    """Every (chunk, index) of a batch in the order it runs."""
    return [(p.owner, i) for p in packed.pieces for i in range(p.start, p.stop)]


def take(packer: Packer[Waiting], now: float = 0.0) -> Packed[Waiting]:
    packed, _ = packer.next_batch(now)
    assert packed is not None
    return packed


arrivals = st.tuples(
    st.sampled_from(LANES),
    st.sampled_from(["a", "b"]),
    st.lists(st.integers(1, 90), min_size=1, max_size=6),
    st.integers(1, 30),
)
steps = st.lists(
    st.one_of(arrivals, st.just("pack"), st.just("tick"), st.integers(0, 5)), max_size=60
)
policies = st.builds(
    Policy,
    budget=st.integers(8, 64),
    bulk_pass=st.integers(8, 64),
    bulk_pass_busy=st.integers(8, 64),
    bulk_floor=st.sampled_from([0.0, 0.2, 0.5]),
    fill=st.booleans(),
)


class History:
    """Drives a packer through made-up steps and keeps what it did."""

    def __init__(self, policy: Policy, quadratic: float) -> None:
        self.policy, self.quadratic = policy, quadratic
        self.packer: Packer[Waiting] = Packer(policy)
        self.now = 0.0
        self.added: list[Waiting] = []
        self.gone: list[Waiting] = []
        self.batches: list[tuple[Packed[Waiting], float]] = []

    def play(self, step: object) -> None:
        if isinstance(step, tuple):
            lane, model, lens, ttl = step
            made = Waiting(
                lane, model, lens, costs_of(lens, self.quadratic), self.now, self.now + ttl
            )
            self.added.append(made)
            self.packer.add(made)
        elif step == "tick":
            self.now += 5.0
        elif isinstance(step, int):
            if step < len(self.added) and self.packer.drop(self.added[step]):
                self.gone.append(self.added[step])
        else:
            self.pack()

    def pack(self) -> bool:
        before = {w: w.taken for w in self.packer.waiting()}
        packed, expired = self.packer.next_batch(self.now)
        assert [w for w in before if w.expires_s <= self.now] == sorted(
            expired, key=list(before).index
        )
        self.gone += expired
        if packed is not None:
            self.check(packed)
            self.batches.append((packed, self.now))
        return packed is not None

    def check(self, packed: Packed[Waiting]) -> None:
        taken = sequences(packed)
        costs = [w.costs[i] for w, i in taken]
        assert packed.cost == pytest.approx(sum(costs))
        assert packed.tokens == sum(w.seqlens[i] for w, i in taken)
        assert {w.model for w, _ in taken} == {packed.model}
        assert packed.lane == min(w.lane for w, _ in taken)
        assert all(w.expires_s > self.now for w, _ in taken), "expired work was packed"
        budget = max(self.policy.budget, self.policy.bulk_pass, self.policy.bulk_pass_busy)
        assert sum(costs[:-1]) < budget, "went on after the budget was reached"
        if any(w.seqlens[i] > budget for w, i in taken):
            assert len(costs) == 1, "a sequence over the budget did not run alone"


@settings(max_examples=300, deadline=None)
@given(policies, steps, st.sampled_from([0.0, 0.01]))
def test_every_sequence_is_packed_once_or_its_chunk_expired_or_was_dropped(
    policy: Policy, history: list[object], quadratic: float
) -> None:
    h = History(policy, quadratic)
    for step in history:
        h.play(step)
        for lane in LANES:
            assert h.packer.tokens(lane) == sum(
                w.tokens for w in h.packer.waiting() if w.lane is lane
            )
    while h.pack():
        pass
    ran = [s for packed, _ in h.batches for s in sequences(packed)]
    assert len(ran) == len(set(ran))
    for w in h.added:
        if w not in h.gone:
            assert [i for owner, i in ran if owner is w] == list(range(len(w.seqlens)))
    assert [h.packer.tokens(lane) for lane in LANES] == [0, 0, 0]


@settings(max_examples=200, deadline=None)
@given(policies, steps)
def test_a_lane_of_a_model_is_first_come_first_served(
    policy: Policy, history: list[object]
) -> None:
    h = History(policy, 0.0)
    for step in history:
        h.play(step)
    ran = [s for packed, _ in h.batches for s in sequences(packed)]
    for lane in LANES:
        for model in ("a", "b"):
            order = [(w.serial, i) for w, i in ran if w.lane is lane and w.model == model]
            assert all(a < b for a, b in pairwise(order))


@settings(max_examples=200, deadline=None)
@given(policies, steps)
def test_a_batch_stops_short_only_when_nothing_more_fits(
    policy: Policy, history: list[object]
) -> None:
    h = History(policy, 0.0)
    for step in history:
        h.play(step)
    packed, _ = h.packer.next_batch(h.now)
    if packed is None:
        return
    smallest = min(policy.budget, policy.bulk_pass, policy.bulk_pass_busy)
    for lane in LANES if policy.fill else [packed.lane]:
        head = h.packer.oldest(lane, packed.model)
        if packed.cost < smallest and head is not None:
            assert head.seqlens[head.taken] > smallest, "room was left for the next in line"


def test_the_budget_is_reached_and_never_kept_under() -> None:
    packer: Packer[Waiting] = Packer(Policy(budget=512))
    packer.add(waiting(16))
    packer.add(waiting(512, 512))
    first, second = take(packer), take(packer)
    assert (first.tokens, second.tokens) == (528, 512)


def test_a_sequence_over_the_budget_runs_alone_between_its_neighbours() -> None:
    packer: Packer[Waiting] = Packer(Policy(budget=100))
    packer.add(waiting(10, 4096, 10, 20))
    assert [take(packer).tokens for _ in range(3)] == [10, 4096, 30]


def test_attention_cost_lets_a_long_sequence_fill_a_batch_alone() -> None:
    packer: Packer[Waiting] = Packer(Policy(budget=512))
    packer.add(waiting(400, 400, quadratic=1e-3))
    assert take(packer).cost == pytest.approx(400 + 160)


def test_attention_cost_does_not_keep_a_sequence_of_the_budget_from_sharing_a_batch() -> None:
    packer: Packer[Waiting] = Packer(Policy(budget=512, fill=True))
    packer.add(waiting(16, quadratic=4e-4))
    packer.add(waiting(512, lane=Lane.BULK, quadratic=4e-4))
    assert take(packer).tokens == 528


def test_a_lane_goes_before_the_lanes_below_it_whatever_came_first() -> None:
    packer: Packer[Waiting] = Packer(Policy(budget=8, bulk_floor=0.0))
    for lane in reversed(LANES):
        packer.add(waiting(8, lane=lane))
    assert [take(packer).lane for _ in range(3)] == list(LANES)


def test_models_take_turns_by_the_arrival_of_their_heads() -> None:
    packer: Packer[Waiting] = Packer(Policy(budget=8))
    for model in ("a", "b", "b", "a", "b"):
        packer.add(waiting(8, model=model))
    assert [take(packer).model for _ in range(5)] == ["a", "b", "b", "a", "b"]


def test_a_later_query_of_the_same_model_joins_but_another_model_never_does() -> None:
    packer: Packer[Waiting] = Packer(Policy(budget=100))
    for model in ("a", "b", "a"):
        packer.add(waiting(8, model=model))
    assert [(take(packer).model, packer.tokens(Lane.QUERY)) for _ in range(2)] == [
        ("a", 8),
        ("b", 0),
    ]


@pytest.mark.parametrize("fill", [False, True], ids=["apart", "mixed"])
@given(query=st.integers(1, 200), rerank=st.booleans(), document=st.integers(1, 200))
@settings(max_examples=60, deadline=None)
def test_bulk_gets_its_floor_and_little_more_while_queries_saturate(
    fill: bool, query: int, rerank: bool, document: int
) -> None:
    policy = Policy(budget=256, bulk_pass=512, bulk_pass_busy=256, bulk_floor=0.2, fill=fill)
    packer: Packer[Waiting] = Packer(policy)
    spent = dict.fromkeys(LANES, 0.0)
    for _ in range(300):
        while packer.tokens(Lane.BULK) < 1024:
            packer.add(waiting(document, document, lane=Lane.BULK))
        while packer.tokens(Lane.QUERY) < 1024:
            packer.add(waiting(query, query))
        if rerank and packer.tokens(Lane.RERANK) < 1024:
            packer.add(waiting(512, lane=Lane.RERANK))
        for owner, i in sequences(take(packer)):
            spent[owner.lane] += owner.costs[i]
    total = sum(spent.values())
    slack = policy.bulk_pass + 2 * policy.budget
    assert spent[Lane.BULK] >= 0.2 * total - slack
    assert spent[Lane.BULK] <= 0.2 * total + slack


def test_queries_run_undisturbed_by_the_floor_after_bulk_had_the_device_to_itself() -> None:
    packer: Packer[Waiting] = Packer(Policy(bulk_floor=0.2, bulk_pass=500))
    packer.add(waiting(*[100] * 200, lane=Lane.BULK))
    for _ in range(10):
        take(packer, now=100.0)
    for _ in range(20):
        packer.add(waiting(100))
    lanes = [take(packer).lane for _ in range(4)]
    assert lanes == [Lane.QUERY] * 4


def test_bulk_passes_are_large_in_quiet_and_small_while_queries_come() -> None:
    packer: Packer[Waiting] = Packer(Policy(bulk_pass=400, bulk_pass_busy=100, quiet_s=1.0))
    packer.add(waiting(*[50] * 40, lane=Lane.BULK))
    assert take(packer, now=0.0).tokens == 400
    packer.add(waiting(5, at=1.0))
    assert take(packer, now=1.0).tokens == 5
    assert take(packer, now=1.9).tokens == 100
    assert take(packer, now=2.1).tokens == 400


def test_bulk_fills_up_a_batch_of_queries_only_where_that_is_free() -> None:
    for fill, tokens in ((True, 522), (False, 10)):
        packer: Packer[Waiting] = Packer(Policy(budget=512, fill=fill))
        packer.add(waiting(512, 512, lane=Lane.BULK))
        packer.add(waiting(10))
        assert take(packer).tokens == tokens


def test_only_the_lanes_that_have_room_lead_or_join_a_batch() -> None:
    packer: Packer[Waiting] = Packer(Policy(fill=True))
    packer.add(waiting(8, lane=Lane.BULK))
    assert packer.next_batch(0.0, (Lane.QUERY,)) == (None, [])
    packer.add(waiting(8))
    packed, _ = packer.next_batch(0.0, (Lane.QUERY,))
    assert packed is not None and packed.tokens == 8


def test_expired_work_is_returned_even_when_its_lane_has_no_room() -> None:
    packer: Packer[Waiting] = Packer(Policy())
    old = waiting(8, lane=Lane.RERANK, until=1.0)
    packer.add(old)
    assert packer.next_batch(1.0, (Lane.QUERY,)) == (None, [old])
    assert packer.tokens(Lane.RERANK) == 0


def test_a_chunk_that_is_half_packed_can_be_dropped_but_one_that_is_fully_packed_cannot() -> None:
    packer: Packer[Waiting] = Packer(Policy(budget=10))
    half, whole = waiting(10, 10), waiting(10)
    packer.add(half)
    take(packer)
    assert packer.drop(half) and not packer.drop(half)
    packer.add(whole)
    take(packer)
    assert not packer.drop(whole)
    assert packer.tokens(Lane.QUERY) == 0
