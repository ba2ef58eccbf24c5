"""The OpenAI dialect: embeddings and the list of models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from aiohttp import web

from hedgerow_gateway.core import Core
from hedgerow_gateway.routes.http import HttpFront
from hedgerow_shared.errors import UnknownModelError


def add_openai(
    app: web.Application, front: HttpFront, core: Core, catalog: Callable[[], Mapping[str, Any]]
) -> None:
    """POST /v1/embeddings, GET /v1/models and /v1/models/{alias}."""

    async def models(_: web.Request) -> web.StreamResponse:
        return front.reply(catalog())

    async def model(request: web.Request) -> web.StreamResponse:
        try:
            alias = core.models.get(request.match_info["alias"]).alias
        except UnknownModelError as error:
            return front.refuse(error)
        return front.reply(next(m for m in catalog()["data"] if m["id"] == alias))

    app.router.add_post("/v1/embeddings", front.post("embed", core.embed))
    app.router.add_get("/v1/models", models)
    app.router.add_get("/v1/models/{alias:.+}", model)
