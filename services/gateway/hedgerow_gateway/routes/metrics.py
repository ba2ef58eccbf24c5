"""Figures for Prometheus."""

from __future__ import annotations

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from hedgerow_gateway.metrics import Metrics


def add_metrics(app: web.Application, metrics: Metrics) -> None:
    """GET /metrics."""

    async def handler(_: web.Request) -> web.StreamResponse:
        return web.Response(body=metrics.text(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    app.router.add_get("/metrics", handler)
