"""One POST route: read the body, serve it, answer in the same form; errors become bodies."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from time import perf_counter
from typing import Any

from aiohttp import web

from hedgerow_gateway.bigjson import LARGE_BYTES, decode_large
from hedgerow_gateway.bodies import CONTENT_TYPES, Form, decode, encode, form_of
from hedgerow_gateway.call import Call, read_call, read_ttl
from hedgerow_gateway.failures import error_body, retry_headers
from hedgerow_gateway.giveway import breathe
from hedgerow_gateway.limits import Gate, Pass
from hedgerow_gateway.metrics import Metrics
from hedgerow_gateway.routes.reading import BodyReader
from hedgerow_shared.errors import HedgerowError

_log = logging.getLogger("hedgerow.http")

_ONE_WRITE_BYTES = 256 * 1024
_PIECES_PER_TURN = 8

Serve = Callable[[Mapping[str, Any], Call], Awaitable[tuple[str, list[bytes]]]]
BodyOf = Callable[[web.Request], Mapping[str, Any]]
HttpHandler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class HttpFront:
    """Makes aiohttp handlers out of use cases."""

    def __init__(
        self, gate: Gate, metrics: Metrics, gateway_id: str, *, ttl_s: float, max_ttl_s: float
    ) -> None:
        self._gate, self._metrics = gate, metrics
        self._ttl_s, self._max_ttl_s = ttl_s, max_ttl_s
        self._ids = (f"{gateway_id}-{n:x}" for n in itertools.count(1))
        self._bodies = BodyReader(gate.max_body_bytes)
        self._draining = False

    def drain(self) -> None:
        """From now on connections close after each answer, and nobody may dawdle with a body."""
        self._draining = True
        self._bodies.hurry()

    def post(self, route: str, serve: Serve, body_of: BodyOf | None = None) -> HttpHandler:
        """A handler for POST `route`. body_of: for requests whose path and query say it all;
        the header Accept then chooses the form of the answer."""

        async def handler(request: web.Request) -> web.StreamResponse:
            began_s = perf_counter()
            form, model, code = "json", "", "ok"
            held: Pass | None = None
            try:
                held = self._gate.enter()
                ttl_s = read_ttl(request.headers, self._ttl_s, self._max_ttl_s)
                data = await self._bodies.read(request, held, ttl_s)
                kind = "Content-Type" if body_of is None else "Accept"
                form = form_of(data, request.headers.get(kind))
                call = read_call(request.headers, form, ttl_s=ttl_s)
                if body_of is not None:
                    body = body_of(request)
                elif form == "json" and len(data) > LARGE_BYTES:
                    body = await decode_large(data)
                else:
                    body = decode(data, form)
                model, pieces = await serve(body, call)
                return await self._answer(request, pieces, form)
            except HedgerowError as error:
                code = error.code
                return self.refuse(error, form)
            except asyncio.CancelledError:
                code = "cancelled"
                raise
            except Exception:  # noqa: BLE001 - outermost: a bug costs one request and tells nothing
                code = HedgerowError.code
                _log.exception("http: %s failed", route)
                return self.refuse(HedgerowError("internal error; the server's log has it"), form)
            finally:
                if held is not None:
                    held.leave()
                self._metrics.request("http", route, model, code, perf_counter() - began_s)

        return handler

    def refuse(self, error: HedgerowError, form: Form = "json") -> web.Response:
        """The answer to an error."""
        headers = {**self._headers(form), **retry_headers(error)}
        body = encode(error_body(error), form)
        return self._closing(web.Response(status=error.status, body=body, headers=headers))

    def reply(self, body: Mapping[str, Any], status: int = 200) -> web.Response:
        """A small JSON answer."""
        headers = self._headers("json")
        response = web.Response(status=status, body=encode(body, "json"), headers=headers)
        return self._closing(response)

    async def _answer(
        self, request: web.Request, pieces: Sequence[bytes], form: Form
    ) -> web.StreamResponse:
        size = sum(map(len, pieces))
        if size <= _ONE_WRITE_BYTES:
            body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            return self._closing(web.Response(body=body, headers=self._headers(form)))
        response = web.StreamResponse(headers=self._headers(form))
        response.content_length = size
        self._closing(response)
        await response.prepare(request)
        for i, piece in enumerate(pieces):
            await response.write(piece)
            # It only waits when megabytes are under way: the loop is not given to others before.
            if i % _PIECES_PER_TURN == 0:
                await breathe()
        await response.write_eof()
        return response

    def _headers(self, form: Form) -> dict[str, str]:
        return {"Content-Type": CONTENT_TYPES[form], "x-request-id": next(self._ids)}

    def _closing(self, response: Any) -> Any:
        if self._draining:
            response.force_close()
        return response
