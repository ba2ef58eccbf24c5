"""Who serves what: workers as they announce themselves, and as discovery still finds them."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from hedgerow_shared import subjects
from hedgerow_shared.bus import Bus, Message, Subscription
from hedgerow_shared.errors import BadChunkError, HedgerowError, NoWorkerError, OverloadedError
from hedgerow_shared.fleet import FleetModel, decode_event, parse_metadata
from hedgerow_shared.ragged import Lane

_log = logging.getLogger("hedgerow.fleet")

_PING = f"$SRV.PING.{subjects.SERVICE_NAME}"
_INFO = f"$SRV.INFO.{subjects.SERVICE_NAME}"
_STATS = f"$SRV.STATS.{subjects.SERVICE_NAME}"
_REPLIES_S = 0.5
_FULL_S, _FULL_SHARE = 1.0, 0.5
"""A refusal is believed for half of what the worker asks us to wait, and never longer than half a
second: it is an estimate, and somebody must try again to learn of room."""
_LEAST_RETRY_S = 0.05
_MISSED_POLLS = 3


@dataclass(slots=True)
class Worker:
    """One worker as the gateway knows it.

    models: those of its models that this gateway serves too, by alias
    heard_s: when it last said anything, by the fleet's clock
    stats: its last answer to $SRV.STATS
    full_s: lane -> until when it counts as full there, because it refused a chunk
    """

    id: str
    models: Mapping[str, FleetModel]
    heard_s: float
    backlog_tokens: int = 0
    missed: int = 0
    stats: Mapping[str, Any] = field(default_factory=dict[str, Any])
    full_s: dict[Lane, float] = field(default_factory=dict[Lane, float])

    def room_s(self, lane: Lane) -> float:
        """When there may be room in a lane: one that is full for a lane is so for those below."""
        return max((until_s for full, until_s in self.full_s.items() if full <= lane), default=0.0)


class Fleet:
    """The workers that serve this gateway's aliases with the same tokenizer half.

    expected: alias -> fingerprint of the gateway's half of the model
    """

    def __init__(
        self,
        bus: Bus,
        expected: Mapping[str, str],
        clock: Callable[[], float],
        *,
        poll_s: float = 2.0,
    ) -> None:
        self._bus, self._expected, self._clock = bus, expected, clock
        self._poll_s = poll_s
        self._tasks: list[asyncio.Task[None]] = []
        self._subscription: Subscription | None = None
        self._refused: set[tuple[str, str]] = set()
        self._asking: dict[str, asyncio.Task[None]] = {}
        self.workers: dict[str, Worker] = {}
        self.counts: Counter[str] = Counter()

    async def start(self) -> None:
        """Listen to announcements and begin to poll; returns once the server knows."""
        self._subscription = await self._bus.subscribe(subjects.FLEET, self._announced)
        await self._bus.barrier()
        self._tasks = [
            asyncio.create_task(self._poll(self._members, self._poll_s)),
            asyncio.create_task(self._poll(self._figures, 2 * self._poll_s)),
        ]

    async def stop(self) -> None:
        tasks = [*self._tasks, *self._asking.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._subscription is not None:
            await self._subscription.unsubscribe()

    def missing(self) -> list[str]:
        """Aliases that no worker serves."""
        return [alias for alias in self._expected if not self.serving(alias)]

    def serving(self, alias: str) -> list[Worker]:
        return [w for w in self.workers.values() if alias in w.models]

    def heard(self, worker: str, backlog_tokens: int) -> None:
        """A worker answered a chunk: it lives, and this much waits there."""
        known = self.workers.get(worker)
        if known is not None:
            known.heard_s, known.backlog_tokens, known.missed = self._clock(), backlog_tokens, 0

    def refused(self, worker: str, lane: Lane, retry_after_s: float) -> None:
        """A worker was full when a chunk of this lane came."""
        known = self.workers.get(worker)
        if known is not None:
            known.full_s[lane] = self._clock() + min(retry_after_s, _FULL_S) * _FULL_SHARE

    def took(self, worker: str, lane: Lane) -> None:
        """A worker answered a chunk of this lane with rows: it has room there."""
        known = self.workers.get(worker)
        if known is not None and known.full_s:
            known.full_s = {full: at_s for full, at_s in known.full_s.items() if full > lane}

    def check_room(self, alias: str, lane: Lane) -> None:
        """Raise OverloadedError while every worker of a model has just said that it is full: a
        request that will be refused need not be tokenized first."""
        workers = self.serving(alias)
        wait_s = min((w.room_s(lane) for w in workers), default=0.0) - self._clock()
        if wait_s > 0:
            self.counts["shed"] += 1
            raise OverloadedError(
                f"every worker of {alias!r} is full", retry_after_s=max(wait_s, _LEAST_RETRY_S)
            )

    def other(self, alias: str, avoid: Collection[str], since_s: float = 0.0) -> str | None:
        """The least loaded worker of a model that is not in `avoid` and was heard since."""
        found = [w for w in self.serving(alias) if w.id not in avoid and w.heard_s >= since_s]
        return min(found, key=lambda w: w.backlog_tokens).id if found else None

    def forget(self, worker: str) -> None:
        """Its own subject had no listener."""
        self._drop(worker, "is gone")

    def unserved(self, alias: str) -> None:
        """Nobody listened where the workers of a model share the work: whoever is there after
        all is met again by the next poll."""
        for worker in self.serving(alias):
            worker.models = {a: facts for a, facts in worker.models.items() if a != alias}
            _log.info("fleet: worker %s serves %s no more", worker.id, alias)

    def look_again(self, alias: str) -> None:
        """Ask each worker of a model whether it is there, unless that is being asked already.

        One that answers counts as heard; one whose subject has no listener left is dropped.
        """
        for worker in self.serving(alias):
            if worker.id not in self._asking:
                task = asyncio.create_task(self._ping(worker))
                self._asking[worker.id] = task
                task.add_done_callback(lambda _, gone=worker.id: self._asking.pop(gone, None))

    async def _ping(self, worker: Worker) -> None:
        try:
            await self._bus.request(f"{_PING}.{worker.id}", b"", timeout_s=_REPLIES_S)
        except NoWorkerError:
            self.forget(worker.id)
        except HedgerowError as error:
            _log.debug("fleet: worker %s is silent: %s", worker.id, error.message)
        else:
            worker.heard_s = self._clock()

    def _announced(self, message: Message) -> None:
        try:
            event = decode_event(message.data)
        except BadChunkError as error:
            _log.warning("fleet: %s", error.message)
            return
        if event.event == "left":
            self._drop(event.worker, "left")
        else:
            self._meet(event.worker, event.models)

    def _meet(self, worker: str, models: Mapping[str, FleetModel]) -> None:
        """Note a worker and those of its models that fit ours."""
        fitting = {a: facts for a, facts in models.items() if self._fits(worker, a, facts)}
        known = self.workers.get(worker)
        if known is not None:
            known.models, known.heard_s, known.missed = fitting, self._clock(), 0
            return
        self.workers[worker] = Worker(worker, fitting, self._clock())
        _log.info(
            "fleet: worker %s joined, serves %s", worker, ", ".join(fitting) or "none of ours"
        )

    def _fits(self, worker: str, alias: str, model: FleetModel) -> bool:
        ours, theirs = self._expected.get(alias), model.gateway_fingerprint
        if ours is None or theirs == ours:
            return ours is not None
        if (worker, alias) not in self._refused:
            self._refused.add((worker, alias))
            _log.error(
                "fleet: worker %s serves %s with another tokenizer, prompts or length "
                "(fingerprint %s, here %s): start both with the same model folder and "
                "--max-seq-len", worker, alias, theirs, ours,
            )  # fmt: skip
        return False

    def _drop(self, worker: str, why: str) -> None:
        if self.workers.pop(worker, None) is not None:
            _log.info("fleet: worker %s %s", worker, why)

    async def _poll(self, ask: Callable[[], Any], every_s: float) -> None:
        while True:
            try:
                await ask()
            except HedgerowError as error:
                # The bus is down: nobody can answer, so nobody is missed.
                _log.debug("fleet: no poll: %s", error.message)
            await asyncio.sleep(every_s)

    async def _members(self) -> None:
        here: set[str] = set()
        for reply in await self._ask(_INFO):
            event = parse_metadata(reply.get("metadata") or {})
            if event is not None:
                here.add(event.worker)
                self._meet(event.worker, event.models)
        for worker in [w for w in self.workers.values() if w.id not in here]:
            worker.missed += 1
            if worker.missed >= _MISSED_POLLS:
                self._drop(worker.id, f"was not heard for {_MISSED_POLLS} polls")

    async def _figures(self) -> None:
        for reply in await self._ask(_STATS):
            metadata = _mapping(reply.get("metadata"))
            known = self.workers.get(str(metadata.get("worker") or reply.get("id")))
            endpoints = reply.get("endpoints")
            if known is not None and isinstance(endpoints, list) and endpoints:
                known.stats = _mapping(_mapping(endpoints[0]).get("data"))
                known.heard_s = self._clock()

    async def _ask(self, subject: str) -> list[Mapping[str, Any]]:
        replies = await self._bus.request_many(subject, b"", timeout_s=_REPLIES_S)
        return [_json(reply.data) for reply in replies]


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _json(data: Any) -> Mapping[str, Any]:
    """What a service said of itself; anything unreadable counts as nothing."""
    try:
        return _mapping(msgspec.json.decode(data))
    except (msgspec.DecodeError, TypeError):
        return {}
