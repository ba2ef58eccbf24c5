"""Workers around the real packer, and the ways a request may reach them."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from benchmarks.simulator.clock import Clock
from benchmarks.simulator.device import Device, DeviceModel
from hedgerow_gateway.splitter import EMBED, RERANK, ChunkLimits, bulk_limits, split
from hedgerow_scheduler.packer import LANES, Packed, Packer, Policy, Waiting
from hedgerow_shared.ragged import Lane

Routing = Literal["random", "power of two", "least loaded", "central"]

HOP_S = 75e-6
PULL_S = 150e-6
NEVER_S = float("inf")


@dataclass(slots=True)
class Request:
    """What a caller sent: finished when the last of its chunks is answered."""

    lane: Lane
    sent_s: float
    seqlens: Sequence[int]
    finished: Callable[[Request, float], None]
    pending: int = 0


@dataclass(slots=True, eq=False)
class Chunk(Waiting):
    """A chunk in the packer that knows whose it is."""

    request: Request
    unfinished: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispatch:
    """How work reaches workers.

    online, bulk: which worker a chunk goes to; "central" for both is the ideal without a
        network in between: one queue for all workers
    lanes: queries before bulk in the packer; else both share one first-come queue
    pull: bulk is pulled by workers that hold less than two passes of it
    window_tokens: of one bulk request in flight for each worker (0: all of it at once)
    large_limits: of a bulk request with a window, by its number of sequences
    """

    name: str
    online: Routing = "random"
    bulk: Routing = "random"
    lanes: bool = True
    pull: bool = False
    limits: ChunkLimits = EMBED
    rerank_limits: ChunkLimits = RERANK
    window_tokens: int = 0
    large_limits: Callable[[int], ChunkLimits] = bulk_limits


class Worker:
    """One device, the packer before it, and at most `depth` batches in between."""

    def __init__(
        self,
        fleet: Fleet,
        model: DeviceModel,
        policy: Policy,
        depth: int,
        packer: Packer[Chunk],
    ) -> None:
        self.packer = packer
        self.device = Device(fleet.clock, model)
        self._fleet, self._policy, self._depth = fleet, policy, depth
        self._overtake = model.overtaking != "none"
        self._eager = not policy.fill
        self._running: list[Lane] = []
        self._pulling = 0
        self.tokens = 0  # sent to this worker and not answered yet

    def offer(self, chunk: Chunk) -> None:
        """A chunk arrived."""
        self.packer.add(chunk)
        self.turn()

    def turn(self) -> None:
        """Start batches while there is room for them, as the worker's own turn does."""
        while not self.packer.is_empty and (lanes := self._room()):
            queued = Lane.BULK in self._running
            now_s = self._fleet.clock.now_s
            packed, _ = self.packer.next_batch(now_s, lanes, bulk_queued=queued)
            if packed is None:
                break
            self._running.append(packed.lane)
            self.device.submit(packed.lane, packed.tokens, lambda p=packed: self._settle(p))
        self._pull()

    def _room(self) -> tuple[Lane, ...]:
        running = self._running
        full = len(running) >= self._depth
        if self._overtake:
            if self.packer.owes_bulk and Lane.BULK in running:
                return () if full else (Lane.BULK,)
            return tuple(
                lane for lane in LANES if sum(other <= lane for other in running) < self._depth
            )
        worth_it = self._eager or not running or self.packer.fills_a_batch
        return LANES if worth_it and not full else ()

    def _settle(self, packed: Packed[Chunk]) -> None:
        self._running.remove(packed.lane)
        self.tokens -= 0 if self._fleet.is_central else packed.tokens
        for piece in packed.pieces:
            piece.owner.unfinished -= piece.stop - piece.start
            if not piece.owner.unfinished:
                self._fleet.answered(piece.owner)
        self.turn()

    def _pull(self) -> None:
        """Ask for bulk while less than two passes of it are here or on their way."""
        if not self._fleet.dispatch.pull:
            return
        held = self.packer.tokens(Lane.BULK) + self._pulling
        while held < 2 * self._policy.bulk_pass and self._fleet.store:
            chunk = self._fleet.store.popleft()
            size = chunk.tokens
            held, self._pulling = held + size, self._pulling + size
            self._fleet.clock.after(PULL_S, lambda c=chunk, s=size: self._pulled(c, s))

    def _pulled(self, chunk: Chunk, size: int) -> None:
        self._pulling -= size
        self.tokens += size
        self.offer(chunk)


class Fleet:
    """Gateways and workers. Hops cost time; gateways themselves are never the limit."""

    def __init__(
        self,
        clock: Clock,
        dispatch: Dispatch,
        *,
        workers: int,
        model: DeviceModel,
        policy: Policy,
        depth: int = 2,
        seed: int = 0,
    ) -> None:
        self.clock, self.dispatch = clock, dispatch
        self.store: deque[Chunk] = deque()
        self._random = random.Random(seed)
        self._central: Packer[Chunk] | None = Packer(policy) if self.is_central else None
        self.workers = [
            Worker(self, model, policy, depth, self._central or Packer(policy))
            for _ in range(workers)
        ]
        self._held: dict[int, deque[Chunk]] = {}
        self._flying: dict[int, int] = {}

    @property
    def is_central(self) -> bool:
        return self.dispatch.online == "central"

    def send(self, request: Request) -> None:
        """Split a request and send its chunks, all at once or as its window allows."""
        limits = self.dispatch.limits
        if request.lane is Lane.RERANK:
            limits = self.dispatch.rerank_limits
        elif request.lane is Lane.BULK and self.dispatch.window_tokens:
            limits = self.dispatch.large_limits(len(request.seqlens))
        spans = split(request.seqlens, 0, limits)
        request.pending = len(spans)
        chunks = deque(self._chunk(request, *span) for span in spans)
        if request.lane is Lane.BULK and self.dispatch.window_tokens:
            self._held[id(request)], self._flying[id(request)] = chunks, 0
            self._release(request)
            return
        for chunk in chunks:
            self._send(chunk)

    def answered(self, chunk: Chunk) -> None:
        """A worker finished a chunk: its reply takes one hop."""
        self.clock.after(HOP_S, lambda: self._reply(chunk))

    def _chunk(self, request: Request, start: int, stop: int) -> Chunk:
        seqlens = request.seqlens[start:stop]
        lane = request.lane if self.dispatch.lanes else Lane.QUERY
        now_s = self.clock.now_s
        return Chunk(lane, "model", seqlens, seqlens, now_s, NEVER_S, request, len(seqlens))

    def _release(self, request: Request) -> None:
        held = self._held[id(request)]
        window = self.dispatch.window_tokens * len(self.workers)
        while held and self._flying[id(request)] + held[0].tokens <= window:
            chunk = held.popleft()
            self._flying[id(request)] += chunk.tokens
            self._send(chunk)

    def _send(self, chunk: Chunk) -> None:
        if chunk.request.lane is Lane.BULK and self.dispatch.pull:
            self.clock.after(HOP_S, lambda: self._stored(chunk))
            return
        if self._central is not None:
            self.clock.after(HOP_S, lambda: self._arrived(chunk))
            return
        bulk = chunk.request.lane is Lane.BULK
        worker = self._choose(self.dispatch.bulk if bulk else self.dispatch.online)
        # Counted when it is sent: a gateway knows what it has given to whom.
        worker.tokens += chunk.tokens
        self.clock.after(HOP_S, lambda: worker.offer(chunk))

    def _arrived(self, chunk: Chunk) -> None:
        """The ideal: whoever is free takes from the one queue."""
        assert self._central is not None
        self._central.add(chunk)
        for worker in sorted(self.workers, key=lambda w: w.tokens):
            worker.turn()

    def _stored(self, chunk: Chunk) -> None:
        self.store.append(chunk)
        for worker in self._random.sample(self.workers, len(self.workers)):
            worker.turn()
            if not self.store:
                return

    def _choose(self, routing: Routing) -> Worker:
        if routing == "random":
            return self._random.choice(self.workers)
        if routing == "power of two":
            some = self._random.sample(self.workers, min(2, len(self.workers)))
            return min(some, key=lambda w: w.tokens)
        return min(self.workers, key=lambda w: w.tokens)

    def _reply(self, chunk: Chunk) -> None:
        request = chunk.request
        request.pending -= 1
        if id(request) in self._held:
            self._flying[id(request)] -= sum(chunk.seqlens)
            self._release(request)
        if not request.pending:
            self._held.pop(id(request), None)
            self._flying.pop(id(request), None)
            request.finished(request, self.clock.now_s)
