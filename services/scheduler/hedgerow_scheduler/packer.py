"""Which sequences run next. Pure: no clock, no socket, no device; time is an argument.

Lanes in order (query, rerank, bulk), first come first served inside a lane, and a floor for
bulk so that it never starves. A batch is filled *until its cost reaches* the budget, never up
to it: a strict cap makes every short query displace a full batch of bulk.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from hedgerow_shared.ragged import Lane

LANES = tuple(Lane)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How batches are cut. Budgets are in cost: tokens, plus what attention adds to long ones.

    budget:         of a batch led by a query or a rerank
    bulk_pass:      of a batch led by bulk while no query came within `quiet_s`
    bulk_pass_busy: the same while queries do come: one waits for at most this much
    bulk_floor:     share of all cost that bulk gets while it waits
    fill:           a batch may be filled up from lower lanes. Right where a pass costs the same
                    up to a full budget (GPU), wrong where every token costs time (CPU)
    """

    budget: float = 512
    bulk_pass: float = 512
    bulk_pass_busy: float = 256
    bulk_floor: float = 0.2
    quiet_s: float = 1.0
    fill: bool = False


@dataclass(slots=True, eq=False)
class Waiting:
    """A chunk from its arrival until its last sequence was packed.

    seqlens: tokens of each sequence
    costs:   cost of each sequence, see `costs_of`
    taken:   sequences already packed; a chunk may span batches
    """

    lane: Lane
    model: str
    seqlens: Sequence[int]
    costs: Sequence[float]
    arrived_s: float
    expires_s: float
    taken: int = field(default=0, init=False)
    serial: int = field(default=0, init=False)

    @property
    def tokens(self) -> int:
        """Tokens that still wait."""
        return sum(self.seqlens[self.taken :])


W = TypeVar("W", bound=Waiting)


@dataclass(slots=True)
class Piece(Generic[W]):
    """Sequences [start, stop) of one chunk."""

    owner: W
    start: int
    stop: int


@dataclass(slots=True)
class Packed(Generic[W]):
    """One batch to be: sequences of one model, in the order they will run.

    lane: the most urgent lane that has a sequence in it
    """

    model: str
    lane: Lane
    pieces: list[Piece[W]] = field(default_factory=list)
    cost: float = 0.0
    tokens: int = 0


def costs_of(seqlens: Sequence[int], quadratic: float) -> Sequence[float]:
    """Cost of each sequence: len + quadratic * len^2; the second term is attention's."""
    if not quadratic:
        return seqlens
    return [n + quadratic * n * n for n in seqlens]


class Packer(Generic[W]):
    """The queues of one worker, and the rule that empties them."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._queues: list[dict[str, OrderedDict[W, None]]] = [{} for _ in LANES]
        self._tokens = [0] * len(LANES)
        self._serial = 0
        # No waiting chunk expires before this: the queues are only searched once it has passed.
        self._soonest_s = float("inf")
        self._last_online_s = float("-inf")
        self._owed = 0.0

    def add(self, waiting: W) -> None:
        """Put a chunk at the end of its lane."""
        self._serial += 1
        waiting.serial = self._serial
        self._queues[waiting.lane].setdefault(waiting.model, OrderedDict())[waiting] = None
        self._tokens[waiting.lane] += waiting.tokens
        self._soonest_s = min(self._soonest_s, waiting.expires_s)
        if waiting.lane is not Lane.BULK:
            self._last_online_s = max(self._last_online_s, waiting.arrived_s)

    def drop(self, waiting: W) -> bool:
        """Take a chunk out; False when nothing of it waits any more."""
        queue = self._queues[waiting.lane].get(waiting.model)
        if not queue or waiting not in queue:
            return False
        del queue[waiting]
        self._tokens[waiting.lane] -= waiting.tokens
        return True

    def expire(self, now_s: float) -> list[W]:
        """Take out the chunks whose time has come, in the order they arrived."""
        if now_s < self._soonest_s:
            return []
        expired = [w for w in self.waiting() if w.expires_s <= now_s]
        for waiting in expired:
            self.drop(waiting)
        self._soonest_s = min((w.expires_s for w in self.waiting()), default=float("inf"))
        return sorted(expired, key=lambda w: w.serial)

    def next_batch(
        self, now_s: float, lanes: Collection[Lane] = LANES, *, bulk_queued: bool = False
    ) -> tuple[Packed[W] | None, list[W]]:
        """Return (batch or None, expired): expired chunks leave before anything is packed.

        The first sequence is always taken, even when it alone exceeds the budget: a long
        document must run eventually, and one of more tokens than the budget runs alone.

        lanes: those that may be in a batch now
        bulk_queued: an earlier bulk batch still waits on the device, where queries may pass it
        """
        expired = self.expire(now_s)
        order = [lane for lane in self._order() if lane in lanes and self._tokens[lane]]
        if not order:
            return None, expired
        lead, bulk_cost = order[0], 0.0
        bulk_waited = bulk_queued or self._tokens[Lane.BULK] > 0
        packed: Packed[W] = Packed(self._first(lead).model, lead)
        budget = self._budget(lead, now_s)
        for lane in order if self._policy.fill else order[:1]:
            # Bulk that goes first while others wait takes what it is owed and leaves the rest.
            shares = self._policy.fill and lead is lane is Lane.BULK and len(order) > 1
            until = min(budget, self._owed) if shares else budget
            cost = self._take(lane, packed, until, budget)
            bulk_cost += cost if lane is Lane.BULK else 0.0
        if bulk_waited:
            self._account(packed.cost, bulk_cost)
        else:
            self._owed = min(self._owed, 0.0)
        return packed, expired

    def waiting(self) -> Iterable[W]:
        """Every chunk that waits, by lane and model."""
        for models in self._queues:
            for queue in models.values():
                yield from queue

    @property
    def is_empty(self) -> bool:
        return not any(self._tokens)

    @property
    def fills_a_batch(self) -> bool:
        """True when what waits is worth a whole online batch."""
        return sum(self._tokens) >= self._policy.budget

    @property
    def owes_bulk(self) -> bool:
        """True while bulk that waits has had less than its share."""
        return self._owed > 0

    def tokens(self, lane: Lane) -> int:
        """Tokens that wait in one lane."""
        return self._tokens[lane]

    def oldest(self, lane: Lane, model: str) -> W | None:
        """The chunk at the head of a lane for one model."""
        queue = self._queues[lane].get(model)
        return next(iter(queue)) if queue else None

    def state(self, model: str, now_s: float) -> dict[str, dict[str, float]]:
        """Waiting tokens and the age of the oldest chunk of each lane of a model."""
        state: dict[str, dict[str, float]] = {}
        for lane in LANES:
            queue, oldest = self._queues[lane].get(model, ()), self.oldest(lane, model)
            age_s = round(now_s - oldest.arrived_s, 4) if oldest else 0.0
            tokens = sum(w.tokens for w in queue)
            state[lane.name.lower()] = {"backlog_tokens": tokens, "oldest_s": age_s}
        return state

    def _order(self) -> tuple[Lane, ...]:
        if self.owes_bulk and self._tokens[Lane.BULK]:
            return Lane.BULK, Lane.QUERY, Lane.RERANK
        return LANES

    def _first(self, lane: Lane) -> W:
        heads = [next(iter(queue)) for queue in self._queues[lane].values() if queue]
        return heads[0] if len(heads) == 1 else min(heads, key=lambda w: w.serial)

    def _budget(self, lead: Lane, now_s: float) -> float:
        if lead is not Lane.BULK:
            return self._policy.budget
        quiet = now_s - self._last_online_s > self._policy.quiet_s
        return self._policy.bulk_pass if quiet else self._policy.bulk_pass_busy

    def _take(self, lane: Lane, packed: Packed[W], until: float, budget: float) -> float:
        """Move sequences of a lane into the batch until its cost is `until`; return their cost."""
        queue, before = self._queues[lane].get(packed.model), packed.cost
        while queue and (packed.cost < until or not packed.pieces):
            head = next(iter(queue))
            stop, cost = _reach(head, packed.cost, until, budget)
            if stop == head.taken:
                break  # too long to share a batch: it waits for one of its own
            tokens = sum(head.seqlens[head.taken : stop])
            packed.pieces.append(Piece(head, head.taken, stop))
            packed.cost, packed.tokens = cost, packed.tokens + tokens
            packed.lane = min(packed.lane, lane)
            self._tokens[lane] -= tokens
            head.taken = stop
            if stop == len(head.costs):
                del queue[head]
        return packed.cost - before

    def _account(self, cost: float, bulk_cost: float) -> None:
        """Keep what bulk is owed: its share of all that ran while it waited, less what it got.

        What it got too much is remembered up to one pass, so that a burst of queries beside a
        saturating re-index runs undisturbed for pass / floor tokens.
        """
        owed = self._owed + self._policy.bulk_floor * cost - bulk_cost
        self._owed = max(owed, -self._policy.bulk_pass)


def _reach(head: Waiting, cost: float, until: float, budget: float) -> tuple[int, float]:
    """How far a chunk goes into a batch that costs `cost`: (stop, cost after)."""
    stop, costs, seqlens = head.taken, head.costs, head.seqlens
    while stop < len(costs) and (cost < until or not cost):
        # By tokens, not by cost: attention must not turn a sequence of just the budget, the most
        # common length of bulk, into one that no query can share a batch with.
        if cost and seqlens[stop] > budget:
            break
        cost += costs[stop]
        stop += 1
    return stop, cost
