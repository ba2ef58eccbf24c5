"""A worker's life on the bus: join, serve, drain; or end at once when it cannot go on."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from hedgerow_scheduler.bulk import BulkLane
from hedgerow_scheduler.canary import Canary, canaries
from hedgerow_scheduler.facts import describe, facts
from hedgerow_scheduler.guarded import Guarded
from hedgerow_scheduler.intake import Intake
from hedgerow_scheduler.packer import Packer
from hedgerow_scheduler.ports import Host
from hedgerow_scheduler.replies import Held, Replies
from hedgerow_scheduler.rollcall import Entry, RollCall
from hedgerow_scheduler.settings import Settings
from hedgerow_scheduler.warmup import warm_up
from hedgerow_scheduler.watchdog import Watchdog
from hedgerow_scheduler.worker import Worker
from hedgerow_shared import __version__, fleet, subjects
from hedgerow_shared.bus import Bus, Message, Subscription
from hedgerow_shared.errors import HedgerowError, RetryableError, StartupError, WorkerLostError
from hedgerow_shared.micro import Endpoint, Micro
from hedgerow_shared.wire import Chunk, ChunkReply

EXIT_LATE = 1
"""Drained, but not everything accepted could be finished in time."""
EXIT_BROKEN = 70
"""The bus closed for good, or there is a mistake of ours."""
EXIT_ENGINE = 71
"""The engine is dead, hung, or fails on everything."""

_READ_S = 0.1
_log = logging.getLogger("hedgerow.worker")


class Service:
    """One worker between its engines and the bus."""

    def __init__(self, settings: Settings, host: Host, worker_id: str) -> None:
        self._serving = False
        self._settings, self._host, self._id = settings, host, worker_id
        self._failed: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._stop = asyncio.Event()
        self._idle = asyncio.Event()
        self._refreshing: asyncio.Task[None] | None = None
        self._online: list[Subscription] = []
        self._bulk: BulkLane | None = None
        self._buses: list[Bus] = []
        self._models = {alias: describe(engine) for alias, engine in host.engines.items()}

    async def run(self) -> int:
        """Serve until `stop`; return the exit code. Raises StartupError before that."""
        self._bus = await self._connect()
        self._build()
        if self._settings.bulk == "on":
            await self._build_bulk()
        await asyncio.to_thread(warm_up, self._host.engines, self._settings.budget_tokens)
        self._show(await asyncio.to_thread(canaries, self._host.engines))
        live = asyncio.create_task(self._live())
        await asyncio.wait({live, self._failed}, return_when=asyncio.FIRST_COMPLETED)
        if not self._failed.done() and live.exception() is None:
            return live.result()
        live.cancel()
        # Nobody may go on sending here, though the process may live on for its gateway.
        for bus in self._buses:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(bus.close(patience_s=0.0), 2.0)
        return self._failed.result() if self._failed.done() else live.result()

    def stop(self) -> None:
        """Drain, then let `run` return."""
        self._stop.set()

    @property
    def stopping(self) -> bool:
        return self._stop.is_set()

    def hand_over(self, chunk: Chunk, deliver: Callable[[ChunkReply], None], *, alone: bool) -> str:
        """Take a chunk from a gateway in this process; see `Intake.hand_over`."""
        if not self._serving or self._failed.done():
            return ""
        return self._intake.hand_over(chunk, deliver, alone=alone)

    async def _connect(self, use: str = "") -> Bus:
        options = self._settings.bus_options(self._id, use)
        self._buses.append(await Bus.connect(options, on_closed=self._bus_closed))
        return self._buses[-1]

    def _build(self) -> None:
        loop, settings, host = asyncio.get_running_loop(), self._settings, self._host
        self._policy = policy = settings.policy(host.device_name)
        clock = time.monotonic
        self._worker = worker = Worker(
            host.engines,
            Packer[Held](policy),
            Guarded(loop, self._mistaken),
            clock,
            worker_id=self._id,
            depth=settings.depth,
            overtake=host.overtakes and not policy.fill,
            eager=not policy.fill,
            on_dead=self._engine_dead,
        )
        self._watchdog = Watchdog(
            oldest_flight=lambda: worker.oldest_flight,
            is_alive=lambda: host.alive,
            hung_s=settings.hung_s,
            clock=clock,
            on_dead=self._engine_dead,
            on_stall=self._stalled,
        )
        self._served = {alias: facts(engine) for alias, engine in host.engines.items()}
        self._intake = Intake(
            self._served,
            worker,
            Replies(self._bus.publish_nowait, self._bus.max_message_bytes),
            reply_prefixes=settings.reply_prefix,
            backlog_tokens=settings.backlog_tokens,
            clock=clock,
            age_s=self._watchdog.age_s,
        )
        endpoints = [
            Endpoint(f"chunk-{alias}", subjects.chunk(alias), subjects.QUEUE_WORKERS)
            for alias in host.engines
        ]
        self._micro = Micro(
            self._bus,
            service_id=self._id,
            version=__version__,
            description="embeds and scores chunks of token ids",
            metadata=fleet.metadata(self._id, self._models),
            endpoints=endpoints,
            stats=self._stats,
        )

    async def _build_bulk(self) -> None:
        # A connection of its own: 64 KB of results would stand before the answer to a query.
        self._bulk = BulkLane(
            await self._connect("bulk"),
            self._served,
            self._worker,
            limit_tokens=round(2 * self._policy.bulk_pass),
            version_wait_s=self._settings.bulk_version_wait_s,
            clock=time.monotonic,
        )

    def _show(self, shown: Mapping[str, Canary]) -> None:
        """What this worker announces of its models from now on, and compares with others."""
        entries = {a: Entry(self._models[a].fingerprint, canary) for a, canary in shown.items()}
        mixed = self._settings.allow_mixed_fleet
        self._roll_call = RollCall(
            self._bus, self._id, entries, allow_mixed=mixed, on_late=self._not_alike
        )
        engines = self._host.engines
        self._models = {a: describe(engines[a], canary) for a, canary in shown.items()}
        self._micro.metadata = fleet.metadata(self._id, self._models)

    async def _live(self) -> int:
        self._watchdog.begin()
        ticking = asyncio.create_task(self._tick())
        await self._join()
        # What start-up left on the heap stays: collections need not look at it again.
        gc.collect()
        gc.freeze()
        _log.info("worker %s ready on %s: %s", self._id, self._bus.url, ", ".join(self._models))
        await self._stop.wait()
        code = await self._drain()
        ticking.cancel()
        if self._roll_call.reason:
            raise StartupError(self._roll_call.reason)
        return code

    async def _join(self) -> None:
        try:
            await self._roll_call.check()
            for alias in self._models:
                await self._listen(subjects.worker_chunk(self._id, alias))
            for alias in self._models:
                await self._listen(subjects.chunk(alias), queue=subjects.QUEUE_WORKERS)
            await self._bus.subscribe(subjects.worker_cancel(self._id), self._intake.cancel)
            await self._bus.subscribe(subjects.worker_drain(self._id), self._drain_asked)
            await self._bus.barrier()
            await self._micro.start()
            self._announce("joined")
            if self._bulk is not None:
                await self._bulk.start()
            self._serving = True
        except HedgerowError as error:
            raise StartupError(f"cannot join the bus at {self._bus.url}: {error.message}") from None

    async def _listen(self, subject: str, *, queue: str = "") -> None:
        """Take chunks. The bus keeps no more of them than the backlog may hold anyway."""
        tokens = self._settings.backlog_tokens
        subscription = await self._bus.subscribe(
            subject,
            self._intake.take,
            queue=queue,
            max_pending_msgs=max(tokens // 16, 1024),
            max_pending_bytes=max(64 * tokens, 2 * self._bus.max_payload),
            on_dropped=self._intake.dropped,
        )
        self._online.append(subscription)

    async def _drain(self) -> int:
        """Take nothing new, finish what was accepted, send every reply, say goodbye."""
        _log.info("draining: %d tokens to go", self._worker.backlog_tokens())
        end_s = time.monotonic() + self._settings.drain_s
        self._serving = False
        self._roll_call.close()
        if self._bulk is not None:
            await self._bulk.stop_pulling()
        with contextlib.suppress(RetryableError):
            await asyncio.gather(*(s.drain() for s in self._online))
        self._worker.after_turn.append(self._check_idle)
        self._check_idle()
        try:
            await asyncio.wait_for(self._idle.wait(), max(end_s - time.monotonic(), 0.1))
            code = 0
        except TimeoutError:
            code = EXIT_LATE
            _log.error("drain: gave up after %g s", self._settings.drain_s)
            self._worker.abandon(WorkerLostError(f"worker {self._id} ran out of time to drain"))
        if self._bulk is not None and not await self._bulk.finish(end_s - time.monotonic()):
            code = EXIT_LATE
        with contextlib.suppress(HedgerowError):
            self._announce("left")
        await self._micro.stop()
        for bus in reversed(self._buses):
            await bus.close()
        _log.info("drained: %d chunks answered", self._worker.figures.counts["chunks"])
        return code

    def _check_idle(self) -> None:
        if self._worker.is_idle:
            self._idle.set()

    def _announce(self, event: Any) -> None:
        message = fleet.FleetEvent(event=event, worker=self._id, models=self._models)
        self._bus.publish_nowait(subjects.FLEET, fleet.encode_event(message))

    def _stats(self) -> dict[str, Any]:
        snapshot = self._worker.snapshot()
        counts = self._worker.figures.counts
        refused = sum(n for name, n in counts.items() if name.startswith("refused_"))
        return {**snapshot, "num_requests": counts["accepted"] + refused, "num_errors": refused}

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(self._watchdog.period_s)
            self._watchdog.tick()

    def _stalled(self) -> None:
        if self._refreshing is not None:
            self._refreshing.cancel()
        self._refreshing = asyncio.create_task(self._refresh())

    async def _refresh(self) -> None:
        """Read what was sent while this process stood still, then trust new messages again."""
        with contextlib.suppress(HedgerowError):
            await self._bus.barrier()
        await asyncio.sleep(_READ_S)
        self._watchdog.refreshed()

    def _drain_asked(self, message: Message) -> None:
        del message
        _log.info("asked to drain over the bus")
        self._stop.set()

    def _not_alike(self) -> None:
        _log.error("worker %s leaves again: %s", self._id, self._roll_call.reason)
        self._stop.set()

    def _bus_closed(self) -> None:
        self._fail(EXIT_BROKEN, "the bus closed the connection for good")

    def _engine_dead(self, reason: str) -> None:
        self._fail(EXIT_ENGINE, reason)

    def _mistaken(self, error: Exception) -> None:
        _log.error("a turn of the worker failed", exc_info=error)
        self._fail(EXIT_BROKEN, f"mistake in the worker: {error!r}")

    def _fail(self, code: int, reason: str) -> None:
        """End the process soon; whoever waits for us is told to go elsewhere."""
        if self._failed.done():
            return
        _log.error("worker %s ends: %s", self._id, reason)
        self._failed.set_result(code)
        self._serving = False
        if self._bulk is not None:
            self._bulk.halt()
        self._worker.abandon(WorkerLostError(f"worker {self._id} went down: {reason}"))
