"""HTTP that cannot be read: our error body instead of aiohttp's text, and no traceback in the log.

aiohttp answers a broken request line, header or length by itself, before any route is known. Its
protocol class is the one place where that can be changed; tests tell when a release moves it.
"""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import Any

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from hedgerow_gateway.routes.http import HttpFront
from hedgerow_shared.errors import ClientError, HedgerowError

_log = logging.getLogger("hedgerow.http")


class UnreadableRequestError(ClientError):
    code = "unreadable_request"


class _Connection(RequestHandler):
    @property
    def is_silent(self) -> bool:
        return not self._request_count


class Runner(web.AppRunner):
    """An AppRunner whose connections answer with `front` whatever they cannot read."""

    def __init__(self, app: web.Application, front: HttpFront, **options: Any) -> None:
        super().__init__(app, **options)
        self._front = front

    def silent(self) -> int:
        """Connections on which no request has come yet."""
        connections = () if self.server is None else self.server.connections
        return sum(isinstance(c, _Connection) and c.is_silent for c in connections)

    async def _make_server(self) -> web.Server:
        server = await super()._make_server()
        front = self._front

        class Connection(_Connection):
            def handle_error(
                self,
                request: web.BaseRequest,
                status: int = 500,
                exc: BaseException | None = None,
                message: str | None = None,
            ) -> web.StreamResponse:
                if request.writer.output_size > 0:
                    raise ConnectionError("an answer that was begun cannot become an error")
                return unreadable(front, status, exc, message)

        class Server(web.Server):
            def __call__(self) -> RequestHandler:
                return Connection(self, loop=self._loop, **self._kwargs)

        server.__class__ = Server
        return server


def unreadable(
    front: HttpFront, status: int, exc: BaseException | None, message: str | None
) -> web.StreamResponse:
    """The answer to a request that no handler saw."""
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        _log.error("http: a request failed outside of its route", exc_info=exc)
        response = front.refuse(HedgerowError("internal error; the server's log has it"))
    else:
        reason = (message or HTTPStatus(status).phrase).strip().splitlines()[0]
        _log.debug("http: unreadable request: %s", reason)
        response = front.refuse(
            UnreadableRequestError(f"this is not readable as HTTP: {reason[:200]}")
        )
    response.force_close()
    return response
