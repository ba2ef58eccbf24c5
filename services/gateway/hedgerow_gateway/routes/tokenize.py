"""What the model would get of a text."""

from __future__ import annotations

from aiohttp import web

from hedgerow_gateway.core import Core
from hedgerow_gateway.routes.http import HttpFront


def add_tokenize(app: web.Application, front: HttpFront, core: Core) -> None:
    """POST /tokenize."""
    app.router.add_post("/tokenize", front.post("tokenize", core.tokenize))
