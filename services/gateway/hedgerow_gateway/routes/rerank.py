"""Rerank in the shape Jina, Cohere and vLLM clients send and read."""

from __future__ import annotations

from aiohttp import web

from hedgerow_gateway.reranking import Rerank
from hedgerow_gateway.routes.http import HttpFront


def add_rerank(app: web.Application, front: HttpFront, rerank: Rerank) -> None:
    """POST /rerank, /v1/rerank (Jina, Cohere v1, vLLM) and /v2/rerank (Cohere v2): one body."""
    handler = front.post("rerank", rerank.serve)
    for path in ("/rerank", "/v1/rerank", "/v2/rerank"):
        app.router.add_post(path, handler)
