"""Liveness and readiness, apart: a gateway without workers is alive, not ready."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from aiohttp import web

from hedgerow_gateway.routes.http import HttpFront

Readiness = Callable[[], tuple[bool, Mapping[str, Any]]]


def add_health(app: web.Application, front: HttpFront, readiness: Readiness) -> None:
    """GET /health/live, /health/ready, and /health, which is the same as ready."""

    async def live(_: web.Request) -> web.StreamResponse:
        return front.reply({"status": "live"})

    async def ready(_: web.Request) -> web.StreamResponse:
        yes, body = readiness()
        response = front.reply(body, 200 if yes else 503)
        if not yes:
            response.headers["Retry-After"] = "1"
        return response

    app.router.add_get("/health/live", live)
    app.router.add_get("/health/ready", ready)
    app.router.add_get("/health", ready)
