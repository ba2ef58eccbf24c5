"""The overlap turn: start batch N+1, then settle batch N, so that the device never waits.

Everything here runs on the event loop and nothing waits: chunks come in through `offer`, a
finished step comes back from the engine's thread, and both only ask for a turn.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, cast

from hedgerow_scheduler.figures import Figures
from hedgerow_scheduler.flight import Flight, halves, probe
from hedgerow_scheduler.packer import LANES, Packed, Packer, Piece
from hedgerow_scheduler.ports import Engine, Loop
from hedgerow_scheduler.replies import Held
from hedgerow_shared.errors import CancelledError, DeadlineError, HedgerowError, RowError
from hedgerow_shared.ragged import Lane, Row
from hedgerow_shared.wire import ChunkReply

_log = logging.getLogger("hedgerow.worker")

FAILURES_BEFORE_PROBE = 8


class Worker:
    """Moves chunks from the packer through the engines to their owners.

    depth: batches in flight: one runs, the rest are queued on the device
    overtake: the engine lets a query pass queued bulk, so the limit counts only work of the same
        or a higher lane. Bulk that is owed its floor is not passed any more
    eager: a batch that is only part full is queued behind a running one at once. Right where
        every token costs time; where a pass costs the same up to a full budget, it waits for
        more to share it until the device is free
    after_turn: called when chunks were started or settled; whoever feeds a lane by itself
        (bulk) or waits for the end (drain) looks at the backlog then
    on_dead: called with the reason when an engine fails even on input known to be good
    """

    def __init__(
        self,
        engines: Mapping[str, Engine],
        packer: Packer[Held],
        loop: Loop,
        clock: Callable[[], float],
        *,
        worker_id: str,
        depth: int = 2,
        overtake: bool = False,
        eager: bool = True,
        on_dead: Callable[[str], None],
    ) -> None:
        self.id = worker_id
        self.figures = Figures()
        self.after_turn: list[Callable[[], None]] = []
        self._engines, self._packer = engines, packer
        self._loop, self._clock = loop, clock
        self._depth, self._overtake, self._eager = depth, overtake, eager
        self._on_dead = on_dead
        self._open: dict[str, list[Held]] = {}
        self._flights: list[Flight] = []
        self._again: deque[Packed[Held]] = deque()
        self._turn_due = self._in_turn = self._ran_here = False
        self._home = threading.get_ident()
        self._free_s = 0.0
        self._failures = 0

    def offer(self, held: Held) -> None:
        """Queue a chunk. It starts at the end of this loop turn if the device has room, in
        one batch with whatever else arrived in the same turn."""
        self._open.setdefault(held.id, []).append(held)
        self._packer.add(held)
        self._ask_for_turn()

    def cancel(self, ids: Iterable[str]) -> None:
        """Answer these chunks with CancelledError; what is not in flight will not run."""
        for chunk_id in ids:
            for held in self._open.get(chunk_id, [])[:]:
                self.figures.counts["cancelled"] += 1
                self._answer(held, CancelledError("cancelled by the caller"))
        self._ask_for_turn()

    def abandon(self, error: HedgerowError) -> None:
        """Answer everything that is still open with `error`, so that nobody waits for us."""
        for held in [h for same_id in self._open.values() for h in same_id]:
            self._answer(held, error)

    @property
    def is_idle(self) -> bool:
        return not (self._open or self._flights)

    @property
    def oldest_flight(self) -> object | None:
        """The batch that has been on the device longest; the watchdog compares identities."""
        return next((f for f in self._flights if f.done_s is None), None)

    def backlog_tokens(self, lane: Lane = Lane.BULK) -> int:
        """Tokens that a new chunk of `lane` finds before it, on the device or waiting."""
        running = sum(f.packed.tokens for f in self._flights)
        return running + sum(self._packer.tokens(ahead) for ahead in LANES if ahead <= lane)

    def waiting_tokens(self, lane: Lane) -> int:
        """Tokens of one lane that are not on the device yet."""
        return self._packer.tokens(lane)

    def retry_after_s(self) -> float:
        return self.figures.retry_after_s(self.backlog_tokens())

    def turn(self) -> None:
        """Start what there is room for, then settle what is done."""
        self._turn_due, self._in_turn, self._ran_here = False, True, False
        self._start_batches()
        while finished := [f for f in self._flights if f.done_s is not None]:
            # In the order they ended: a query that passed bulk on the device ended before it.
            self._settle(min(finished, key=lambda f: f.done_s or 0.0))
            self._start_batches()
        self._in_turn = False
        if self._ran_here and (self._again or not self._packer.is_empty):
            self._ask_for_turn()  # the bus writes the answers of this turn first
        for told in self.after_turn:
            told()

    def snapshot(self) -> dict[str, Any]:
        """What this worker says about itself: numbers by name, and `models` by alias."""
        now_s = self._clock()
        return {
            **self.figures.snapshot(),
            "backlog_tokens": self.backlog_tokens(),
            "in_flight": len(self._flights),
            "open_chunks": sum(len(same_id) for same_id in self._open.values()),
            "models": {
                alias: {"lanes": self._packer.state(alias, now_s), "engine": dict(engine.stats())}
                for alias, engine in self._engines.items()
            },
        }

    def _ask_for_turn(self) -> None:
        if not self._turn_due:
            self._turn_due = True
            self._loop.call_soon(self.turn)

    def _start_batches(self) -> None:
        while (self._again or not self._packer.is_empty) and (lanes := self._room()):
            if self._ran_here:
                return
            packed = self._next(lanes)
            if packed is None:
                return
            self._launch(packed)

    def _room(self) -> tuple[Lane, ...]:
        """Lanes that may start a batch now."""
        # Batches that are done but not settled are bounded too: a turn settles before it goes on.
        if len(self._flights) >= len(LANES) * self._depth:
            return ()
        running = [f.packed.lane for f in self._flights if f.done_s is None]
        full = len(running) >= self._depth
        if self._overtake:
            if self._packer.owes_bulk and Lane.BULK in running:
                return () if full else (Lane.BULK,)
            return tuple(
                lane for lane in LANES if sum(other <= lane for other in running) < self._depth
            )
        if full:
            return ()
        worth_it = self._eager or not running or self._again or self._packer.fills_a_batch
        return LANES if worth_it else ()

    def _next(self, lanes: tuple[Lane, ...]) -> Packed[Held] | None:
        """The parts of a batch that failed go first, then what the packer says."""
        while self._again and self._again[0].lane in lanes:
            packed = self._again.popleft()
            packed.pieces = [p for p in packed.pieces if not p.owner.answered]
            if packed.pieces:
                return packed
        bulk_queued = any(f.packed.lane is Lane.BULK for f in self._flights if f.done_s is None)
        packed, expired = self._packer.next_batch(self._clock(), lanes, bulk_queued=bulk_queued)
        for held in expired:
            self._expire(held)
        return packed

    def _launch(self, packed: Packed[Held]) -> None:
        flight = Flight(packed, self._clock())
        self._flights.append(flight)
        try:
            flight.lazy = self._engines[packed.model].step(flight.batch(), packed.lane)
        except Exception as error:  # noqa: BLE001 - settled like any failed step
            flight.error, flight.done_s = error, flight.started_s
        else:
            flight.lazy.add_done_callback(partial(self._done, flight))

    def _done(self, flight: Flight) -> None:
        # Runs on the engine's thread: two assignments and a wake-up, nothing else. Or in the turn
        # that started the batch, if the engine ran it there: that turn settles it, too.
        flight.done_s = self._clock()
        if self._in_turn and threading.get_ident() == self._home:
            self._ran_here = True
        else:
            self._loop.call_soon_threadsafe(self.turn)

    def _settle(self, flight: Flight) -> None:
        self._flights.remove(flight)
        packed, done_s = flight.packed, flight.done_s
        assert done_s is not None, "only a finished flight is settled"
        # The device takes one batch after the other: this one began when the last had ended.
        compute_s = max(done_s - max(flight.started_s, self._free_s), 0.0)
        self._free_s = max(self._free_s, done_s)
        try:
            rows = flight.rows()
        except Exception as error:  # noqa: BLE001 - whatever a step raises, only its culprit may suffer
            self._isolate(packed, error)
            return
        self._failures = 0
        self.figures.batch(packed.tokens, len(rows), compute_s)
        at = 0
        for piece in packed.pieces:
            upto = at + piece.stop - piece.start
            self._fill(piece, rows[at:upto], compute_s)
            at = upto
        assert at == len(rows) or flight.is_probe, "an engine answers every sequence once"
        flight.release()

    def _fill(self, piece: Piece[Held], rows: list[Row], compute_s: float) -> None:
        held = piece.owner
        if held.answered:
            return
        held.compute_s += compute_s
        if not held.settle(piece.start, rows):
            return
        if held.expires_s <= self._clock():
            self._expire(held)
        else:
            self._answer(held)

    def _isolate(self, packed: Packed[Held], error: Exception) -> None:
        """A step failed: halve it until the sequence that did it stands alone."""
        self.figures.counts["steps_failed"] += 1
        self._failures += 1
        reason = f"{type(error).__name__}: {error}"
        if not packed.pieces:
            self._on_dead(f"{packed.model} fails on input known to be good: {reason}")
            return
        _log.warning("step of %d tokens failed: %s", packed.tokens, reason)
        parts = halves(packed)
        self._again.extendleft(reversed(parts))
        if not parts:
            self._fail(packed.pieces[0], error)
        if self._failures == FAILURES_BEFORE_PROBE:
            self._launch(probe(packed.model))

    def _fail(self, piece: Piece[Held], error: Exception) -> None:
        known = isinstance(error, HedgerowError)
        row = (
            error
            if known
            else RowError(f"the engine failed on this input ({type(error).__name__})")
        )
        self.figures.counts["rows_failed"] += 1
        self._fill(piece, [row], 0.0)

    def _expire(self, held: Held) -> None:
        self.figures.counts["expired"] += 1
        late_ms = (self._clock() - held.expires_s) * 1e3
        self._answer(held, DeadlineError(f"its time was over {late_ms:.0f} ms ago in the worker"))

    def _answer(self, held: Held, error: HedgerowError | None = None) -> None:
        """Send the one reply of a chunk: its rows, or why there are none."""
        self._packer.drop(held)
        held.answered = True
        same_id = self._open[held.id]
        same_id.remove(held)
        if not same_id:
            del self._open[held.id]
        compute_ms = held.compute_s * 1e3
        queue_ms = max((self._clock() - held.arrived_s) * 1e3 - compute_ms, 0.0)
        rows: list[Row] = []
        if error is None:
            rows = cast("list[Row]", held.rows)
            self.figures.chunk(queue_ms, compute_ms)
        held.deliver(
            ChunkReply(
                held.id,
                self.id,
                rows,
                error,
                queue_ms,
                compute_ms,
                self.backlog_tokens(),
                self._engines[held.model].fingerprint,
            )
        )
