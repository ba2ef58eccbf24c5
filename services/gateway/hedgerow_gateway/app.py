"""The gateway put together: models, bus, fleet, HTTP and NATS; up, ready, drained."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Mapping
from typing import Any

import msgspec
from aiohttp import web

from hedgerow_gateway.bodies import encode
from hedgerow_gateway.bulk.faces import add_bulk, endpoints
from hedgerow_gateway.bulk.lane import Bulk
from hedgerow_gateway.call import Call
from hedgerow_gateway.coalesce import Coalescer
from hedgerow_gateway.core import Core
from hedgerow_gateway.dispatch import Dispatcher
from hedgerow_gateway.fleet import Fleet
from hedgerow_gateway.limits import Gate
from hedgerow_gateway.metrics import Metrics
from hedgerow_gateway.models import Models, ServedModel
from hedgerow_gateway.natsface import Endpoint, NatsFace
from hedgerow_gateway.near import Near
from hedgerow_gateway.pool import SlicePool
from hedgerow_gateway.reranking import Rerank
from hedgerow_gateway.routes.fallback import fallback
from hedgerow_gateway.routes.health import add_health
from hedgerow_gateway.routes.http import HttpFront
from hedgerow_gateway.routes.listener import Listener
from hedgerow_gateway.routes.metrics import add_metrics
from hedgerow_gateway.routes.openai import add_openai
from hedgerow_gateway.routes.openapi import add_openapi
from hedgerow_gateway.routes.protocol import Runner
from hedgerow_gateway.routes.rerank import add_rerank
from hedgerow_gateway.routes.tokenize import add_tokenize
from hedgerow_gateway.settings import Settings
from hedgerow_gateway.tokenizer import selfcheck
from hedgerow_shared import __version__, micro, subjects
from hedgerow_shared.bus import Bus
from hedgerow_shared.cores import usable_cores

_log = logging.getLogger("hedgerow.gateway")

_DRAIN_POLL_S = 0.01
_SILENT_S = 1.0
"""How long a connection that has sent nothing yet may delay the end."""
_LINGER_S = 3.0
"""How long a caller may go on sending a body that was refused, so that he reads why."""


class Gateway:
    """One process's gateway. Make it with `start`; `drain` ends it without losing a request."""

    def __init__(
        self,
        settings: Settings,
        models: Models,
        bus: Bus,
        gateway_id: str,
        bulk_bus: Bus | None = None,
        near: Near | None = None,
    ) -> None:
        self.id, self._settings, self._models, self._bus = gateway_id, settings, models, bus
        loop = asyncio.get_running_loop()
        times = {"ttl_s": settings.ttl_s, "max_ttl_s": settings.max_ttl_s}
        expected = {model.alias: model.fingerprint for model in models}
        self.fleet = Fleet(bus, expected, loop.time, poll_s=settings.fleet_poll_s)
        self._dispatcher = Dispatcher(
            bus, self.fleet, gateway_id, settings.dispatch_options(), near
        )
        self._pool = SlicePool(settings.tokenize_threads or max(1, usable_cores() - 1))
        self._metrics = Metrics()
        self._gate = Gate(
            max_body_bytes=settings.max_body_bytes,
            max_requests=settings.max_inflight_requests,
            max_bytes=settings.max_inflight_bytes,
        )
        self._coalescer = Coalescer(
            self._dispatcher.run,
            engines=self._engines,
            cache_bytes=settings.cache_mb << 20,
            enabled=settings.coalesce == "on",
        )
        # What is kept may answer even while every worker is full.
        check_room = None if settings.cache_mb else self.fleet.check_room
        self._core = Core(
            models, self._coalescer, self._pool, self._metrics, settings.rules(), check_room
        )
        self._rerank = Rerank(self._core, gateway_id)
        self._bulk = None if bulk_bus is None else self._make_bulk(bulk_bus)
        self._front = HttpFront(self._gate, self._metrics, gateway_id, **times)
        self._nats = NatsFace(
            bus, self._gate, self._metrics, reply_prefix=settings.reply_prefix, **times
        )
        self._runner = Runner(
            self._web(),
            self._front,
            access_log=None,
            handler_cancellation=True,
            auto_decompress=False,  # routes.inflate does it
            shutdown_timeout=settings.drain_s,
            keepalive_timeout=75,
            lingering_time=_LINGER_S,
        )
        self._listener: Listener | None = None
        self._micro: micro.Micro | None = None
        self._draining = False
        self._metrics.watch(self.fleet, self._figures)
        if self._bulk is not None:
            self._metrics.registry.register(self._bulk.backlog)

    @classmethod
    async def start(
        cls,
        settings: Settings,
        models: Models,
        bus: Bus,
        gateway_id: str = "",
        bulk_bus: Bus | None = None,
        near: Near | None = None,
    ) -> Gateway:
        """Answer on the bus and over HTTP. Raises StartupError (one line) if it cannot.

        bulk_bus: a second connection, for jobs; None = take none
        near: the worker of this process, if it has one
        """
        gateway = cls(settings, models, bus, gateway_id or secrets.token_hex(4), bulk_bus, near)
        await gateway.fleet.start()
        if gateway._bulk is not None:
            gateway._bulk.start()
        endpoints = gateway._endpoints()
        await gateway._nats.start(endpoints)
        await gateway._listen()
        gateway._micro = micro.Micro(
            bus,
            service_id=gateway.id,
            version=__version__,
            description="Hedgerow gateway: text in, vectors and rankings out",
            metadata={
                "role": "gateway",
                "gateway": gateway.id,
                "models": encode(gateway._catalog(), "json").decode(),
            },
            endpoints=[
                micro.Endpoint(e.route, e.subject, subjects.QUEUE_GATEWAYS) for e in endpoints
            ],
            stats=gateway._nats.stats,
        )
        await gateway._micro.start()
        return gateway

    @property
    def port(self) -> int:
        """Where HTTP is answered; differs from the setting when that was 0."""
        return int(self._runner.addresses[0][1])

    async def drain(self) -> None:
        """Stop taking work, finish what was taken, close.

        What came over the bus and what came over HTTP get `drain_s` each.
        """
        settings = self._settings
        self._draining = True
        self._front.drain()
        await asyncio.sleep(settings.drain_delay_s)
        if self._micro is not None:
            await self._micro.stop()
        if self._listener is not None:
            await self._listener.close()
        await self._nats.drain(settings.drain_s)
        await self._quiet()
        await self._runner.cleanup()
        await self.fleet.stop()
        if self._bulk is not None:
            await self._bulk.stop()
        self._pool.close()

    async def _quiet(self) -> None:
        """Until nobody waits for an answer, nor just connected to ask for one."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        while loop.time() < began_s + self._settings.drain_s:
            silent = loop.time() < began_s + _SILENT_S and self._runner.silent()
            if not (self._gate.requests or silent):
                return
            await asyncio.sleep(_DRAIN_POLL_S)

    async def _listen(self) -> None:
        settings = self._settings
        await self._runner.setup()
        listener = Listener(
            self._runner, settings.host, settings.port, reuse_port=settings.reuse_port
        )
        try:
            await listener.open()
        except BaseException:
            await self._runner.cleanup()
            raise
        self._listener = listener

    def _web(self) -> web.Application:
        app = web.Application(
            client_max_size=self._settings.max_body_bytes, middlewares=[fallback(self._front)]
        )
        add_openai(app, self._front, self._core, self._catalog)
        add_rerank(app, self._front, self._rerank)
        add_tokenize(app, self._front, self._core)
        if self._bulk is not None:
            add_bulk(app, self._front, self._bulk)
        add_health(app, self._front, self._readiness)
        add_metrics(app, self._metrics)
        add_openapi(app, self._front)
        return app

    def _endpoints(self) -> list[Endpoint]:
        found = [Endpoint("models", subjects.MODELS, None, self._list)]
        for model in self._models:
            alias = model.alias
            found += [
                Endpoint("embed", subjects.embed(alias), alias, self._core.embed),
                Endpoint("rerank", subjects.rerank(alias), alias, self._rerank.serve),
                Endpoint("tokenize", subjects.tokenize(alias), alias, self._core.tokenize),
            ]
        return found if self._bulk is None else found + endpoints(self._bulk, self._models)

    def _engines(self, alias: str) -> set[str]:
        """Fingerprints of the engines that serve a model now."""
        return {worker.models[alias].fingerprint for worker in self.fleet.serving(alias)}

    def _make_bulk(self, bus: Bus) -> Bulk:
        return Bulk(
            bus,
            self._core,
            engines=self._engines,
            workers=lambda alias: len(self.fleet.serving(alias)),
            options=self._settings.stream_options(),
            limits=self._settings.bulk_limits(),
            gateway_id=self.id,
        )

    async def _list(self, _: Mapping[str, Any], call: Call) -> tuple[str, list[bytes]]:
        return "", [encode(self._catalog(), call.form)]

    def _catalog(self) -> dict[str, Any]:
        return {"object": "list", "data": [self._entry(model) for model in self._models]}

    def _entry(self, model: ServedModel) -> dict[str, Any]:
        """fingerprint: what answers carry; null while no worker serves the model."""
        card, workers = model.card, self.fleet.serving(model.alias)
        facts = workers[0].models[model.alias] if workers else None
        return {
            "id": model.alias,
            "object": "model",
            "created": model.created,
            "owned_by": "hedgerow",
            "task": "rerank" if card.is_scorer else "embed",
            "dimensions": card.dimension or None,
            "max_input_tokens": model.limit,
            "prompts": sorted(card.prompts),
            "fingerprint": facts.fingerprint if facts else None,
            "dtype": facts.dtype if facts else None,
            "workers": len(workers),
        }

    def _readiness(self) -> tuple[bool, Mapping[str, Any]]:
        missing = self.fleet.missing()
        connected = self._bus.is_connected
        ready = connected and not missing and not self._draining
        state = "ready" if ready else "draining" if self._draining else "waiting"
        return ready, {"status": state, "bus": connected, "models_without_workers": missing}

    def _figures(self) -> Mapping[str, float]:
        counts = self._dispatcher.counts
        return {
            "inflight_requests": self._gate.requests,
            "inflight_bytes": self._gate.bytes,
            "workers": len(self.fleet.workers),
            "bus_connected": float(self._bus.is_connected),
            "chunks": counts["chunks"],
            "chunk_retries": counts["retries"],
            "chunks_cancelled": counts["cancelled"],
            "requests_shed": self.fleet.counts["shed"],
            **self._coalescer.figures(),
            **selfcheck.FIGURES,
        }


def describe(settings: Settings) -> str:
    """Settings as one log line, secrets left out."""
    values = msgspec.structs.asdict(settings)
    shown = {k: v for k, v in values.items() if v not in ("", (), None) and "password" not in k}
    return " ".join(f"{k}={v}" for k, v in shown.items())
