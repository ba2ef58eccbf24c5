"""Paths nobody serves, and methods a path does not have: the usual body, not aiohttp's text."""

from __future__ import annotations

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from hedgerow_gateway.routes.http import HttpFront
from hedgerow_shared.errors import ClientError


class UnknownRouteError(ClientError):
    code = "route_not_found"
    status = 404


class MethodError(ClientError):
    code = "method_not_allowed"
    status = 405


def fallback(front: HttpFront) -> Middleware:
    """A middleware that only turns aiohttp's own refusals into ours."""

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except web.HTTPMethodNotAllowed as error:
            allowed = ", ".join(sorted(error.allowed_methods))
            response = front.refuse(MethodError(f"this path takes {allowed}"))
            response.headers["Allow"] = allowed
            return response
        except web.HTTPNotFound:
            return front.refuse(UnknownRouteError("no such path; see GET /openapi.json"))

    return middleware
