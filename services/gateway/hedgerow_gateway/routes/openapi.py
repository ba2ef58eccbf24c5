"""The description of the HTTP side, for tools that read OpenAPI."""

from __future__ import annotations

from importlib import resources

import orjson
from aiohttp import web

from hedgerow_gateway.routes.http import HttpFront
from hedgerow_shared import __version__


def description() -> dict[str, object]:
    """openapi.json beside this file, with the version of this install."""
    text = resources.files("hedgerow_gateway.routes").joinpath("openapi.json").read_bytes()
    found = orjson.loads(text)
    found["info"]["version"] = __version__
    return found


def add_openapi(app: web.Application, front: HttpFront) -> None:
    """GET /openapi.json."""
    found = description()

    async def handler(_: web.Request) -> web.StreamResponse:
        return front.reply(found)

    app.router.add_get("/openapi.json", handler)
