"""The same text asked twice at once is computed once; and asked again later, if it was kept.

It sits between tokenizing and the fleet, so "the same" means the same token ids, model and
output. A sequence that is on its way already is waited for; the work ends when the last one who
waits for it leaves.
"""

from __future__ import annotations

import asyncio
import copy
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np

from hedgerow_gateway.cache import Cache
from hedgerow_gateway.dispatch import Done, Work, one_fingerprint
from hedgerow_gateway.giveway import MANY, breathe
from hedgerow_gateway.tokenizer.encoded import Encoded
from hedgerow_shared.errors import (
    DeadlineError,
    HedgerowError,
    NoWorkerError,
    OverloadedError,
    RetryableError,
    WorkerLostError,
)
from hedgerow_shared.ragged import Lane, OutputSpec, Row

Split = Callable[[Encoded], Sequence[tuple[int, int]]]

_MAX_BASES = 1024


@dataclass(slots=True, eq=False)
class _Pass:
    """One dispatch, and who waits for it. rows: where each key's row is in it."""

    task: asyncio.Task[Done]
    lane: Lane
    rows: dict[bytes, int]
    waiters: list[asyncio.Future[None]] = field(default_factory=list[asyncio.Future[None]])


@dataclass(slots=True)
class _Plan:
    """Where each row of a request comes from: kept, on its way, or to be asked for (`mine`)."""

    rows: list[Row | None]
    prints: set[str] = field(default_factory=set[str])
    joined: dict[_Pass, list[tuple[int, bytes]]] = field(
        default_factory=dict["_Pass", list[tuple[int, bytes]]]
    )
    mine: dict[bytes, list[int]] = field(default_factory=dict[bytes, list[int]])
    queue_ms: float = 0.0
    compute_ms: float = 0.0

    def saw(self, done: Done) -> None:
        self.prints.add(done.fingerprint)
        self.queue_ms = max(self.queue_ms, done.queue_ms)
        self.compute_ms = max(self.compute_ms, done.compute_ms)


class Coalescer:
    """dispatch: has a request computed.

    engines: alias -> fingerprints of the engines that serve it now; rows of others are not kept
    cache_bytes: for rows that were computed before; 0 = none are kept
    enabled: False passes everything on as it is

    Only requests of one chunk are waited for by others: a query must not wait for the rest of a
    large one. Copies inside one request are computed once, whatever its size.
    """

    def __init__(
        self,
        dispatch: Callable[[Work], Coroutine[Any, Any, Done]],
        *,
        engines: Callable[[str], Collection[str]],
        cache_bytes: int = 0,
        enabled: bool = True,
    ) -> None:
        self._dispatch, self._engines, self._enabled = dispatch, engines, enabled
        self._loop = asyncio.get_running_loop()
        self._running: dict[bytes, _Pass] = {}
        self._bases: dict[tuple[str, str, OutputSpec], bytes] = {}
        self._cache = Cache(cache_bytes)
        self.counts: Counter[str] = Counter()

    def figures(self) -> dict[str, float]:
        """For /metrics. joined, repeated: sequences that were not computed again."""
        return {
            "sequences_joined": self.counts["joined"],
            "sequences_repeated": self.counts["repeated"],
            "cache_hits": self._cache.counts["hits"],
            "cache_misses": self._cache.counts["misses"],
            "cache_bytes": self._cache.bytes,
        }

    async def run(self, work: Work, split: Split) -> Done:
        """One row or error per sequence, in order; raises like the dispatch.

        split: cuts what is left to ask for into chunks
        """
        if not self._enabled:
            return await self._dispatch(work)
        keys = self._keys(work)
        if len(keys) == 1 and not self._cache.limit_bytes and keys[0] not in self._running:
            return await self._lead(work, keys)  # a lone query: what follows is for the others
        plan = await self._plan(work, keys)
        if len(plan.mine) == len(keys):
            return await self._lead(work, keys)
        return await self._gather(work, split, plan)

    async def _gather(self, work: Work, split: Split, plan: _Plan) -> Done:
        led: asyncio.Task[Done] | None = None
        if plan.mine:
            own = list(plan.mine.items())
            part = _take(work.encoded, [indices[0] for _, indices in own])
            led = self._loop.create_task(
                self._lead(replace(work, encoded=part, chunks=split(part)), [key for key, _ in own])
            )
        try:
            again = await self._join(work, plan)
            if led is not None:
                _fill(plan, list(plan.mine.values()), await led)
        except BaseException:
            if led is not None:
                led.cancel()
                await asyncio.gather(led, return_exceptions=True)
            raise
        if again:
            # Whoever was waited for failed, perhaps for a reason of its own: ask for ourselves.
            part = _take(work.encoded, again)
            done = await self._dispatch(replace(work, encoded=part, chunks=split(part)))
            _fill(plan, [[index] for index in again], done)
        rows = [row for row in plan.rows if row is not None]
        assert len(rows) == len(plan.rows), "every row comes from somewhere"
        return Done(rows, one_fingerprint(plan.prints), plan.queue_ms, plan.compute_ms)

    async def _join(self, work: Work, plan: _Plan) -> list[int]:
        """Wait for what others asked for. Returns the rows that did not come of it."""
        again: list[int] = []
        for shared, wanted in plan.joined.items():
            try:
                async with asyncio.timeout_at(work.deadline_s):
                    done = await self._wait(shared)
            except TimeoutError:
                raise DeadlineError("the time given to this request is over") from None
            except (OverloadedError, NoWorkerError) as error:
                raise copy.copy(error) from None  # one object in two tasks mixes their tracebacks
            except HedgerowError:
                again += [index for index, _ in wanted]
                continue
            plan.saw(done)
            for index, key in wanted:
                row = done.rows[shared.rows[key]]
                if isinstance(row, RetryableError):
                    again.append(index)
                else:
                    plan.rows[index] = row
        return again

    async def _lead(self, work: Work, keys: Sequence[bytes]) -> Done:
        """Have it computed; those who ask for the same meanwhile wait for it too."""
        if len(work.chunks) > 1:
            done = await self._dispatch(work)
        else:
            task = self._loop.create_task(self._dispatch(work))
            shared = _Pass(task, work.lane, {key: i for i, key in enumerate(keys)})
            for key in keys:
                self._running[key] = shared
            task.add_done_callback(lambda _: self._ended(shared))
            done = await self._wait(shared)
        if self._cache.limit_bytes:
            for key, row in zip(keys, done.rows, strict=True):
                self._cache.put(key, row, done.fingerprint)
        return done

    async def _wait(self, shared: _Pass) -> Done:
        """Its outcome. When the last one leaves before it is there, the work is given up."""
        # It may have ended since it was found: nobody would wake who begins to wait now.
        if not shared.task.done():
            waiter: asyncio.Future[None] = self._loop.create_future()
            shared.waiters.append(waiter)
            try:
                await waiter
            finally:
                if not shared.task.done():
                    shared.waiters.remove(waiter)
                    if not shared.waiters:
                        self._forget(shared)  # at once: nobody may join what is being given up
                        shared.task.cancel()
        if shared.task.cancelled():
            raise WorkerLostError("whoever asked for it first went away")
        return shared.task.result()

    def _ended(self, shared: _Pass) -> None:
        self._forget(shared)
        if not shared.task.cancelled():
            shared.task.exception()  # nobody may be left to see it
        for waiter in shared.waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _forget(self, shared: _Pass) -> None:
        for key in shared.rows:
            if self._running.get(key) is shared:
                del self._running[key]

    async def _plan(self, work: Work, keys: Sequence[bytes]) -> _Plan:
        plan = _Plan([None] * len(keys))
        engines = self._engines(work.model) if self._cache.limit_bytes else ()
        for index, key in enumerate(keys):
            if index % MANY == MANY - 1:
                await breathe()
            if key in plan.mine:
                plan.mine[key].append(index)
                self.counts["repeated"] += 1
                continue
            kept = self._cache.get(key, engines) if engines else None
            if kept is not None:
                plan.rows[index], fingerprint = kept
                plan.prints.add(fingerprint)
                continue
            shared = self._running.get(key)
            # A query must not wait for what stands behind queries.
            if shared is not None and shared.lane <= work.lane:
                plan.joined.setdefault(shared, []).append((index, key))
                self.counts["joined"] += 1
            else:
                plan.mine[key] = [index]
        return plan

    def _keys(self, work: Work) -> list[bytes]:
        """Bytes that are equal for sequences whose rows are."""
        base = (work.model, work.fingerprint, work.output)
        prefix = self._bases.get(base)
        if prefix is None:
            if len(self._bases) >= _MAX_BASES:
                self._bases.clear()
                self._cache.clear()
            prefix = self._bases[base] = b"%d:" % (len(self._bases) + 1)
        encoded = work.encoded
        ids, bounds = encoded.input_ids, encoded.cu_seqlens.tolist()
        pairs, prompts = encoded.pair_start, encoded.prompt_len
        if not pairs.size and not prompts.size:
            prefix += b";"
            return [prefix + ids[a:b].tobytes() for a, b in pairwise(bounds)]
        none = [0] * (len(bounds) - 1)
        offsets = zip(pairs.tolist() or none, prompts.tolist() or none, strict=True)
        return [
            prefix + b"%d,%d;" % offset + ids[a:b].tobytes()
            for offset, (a, b) in zip(offsets, pairwise(bounds), strict=True)
        ]


def _fill(plan: _Plan, places: Sequence[Sequence[int]], done: Done) -> None:
    """Put each row of a dispatch where it was wanted."""
    plan.saw(done)
    for indices, row in zip(places, done.rows, strict=True):
        for index in indices:
            plan.rows[index] = row


def _take(encoded: Encoded, indices: Sequence[int]) -> Encoded:
    """Some sequences, in this order."""
    cu = encoded.cu_seqlens
    lens = encoded.used[indices]
    bounds = np.zeros(len(indices) + 1, np.int32)
    np.cumsum(lens, out=bounds[1:])
    pairs, prompts = encoded.pair_start, encoded.prompt_len
    return Encoded(
        np.concatenate([encoded.input_ids[cu[i] : cu[i + 1]] for i in indices]),
        bounds,
        encoded.seen[indices],
        encoded.at_least[indices],
        pairs[indices] if pairs.size else pairs,
        prompts[indices] if prompts.size else prompts,
    )
