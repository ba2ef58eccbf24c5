"""Request bodies as they come in: counted byte by byte, and not waited for without end."""

from __future__ import annotations

import asyncio

from aiohttp import StreamReader, web
from aiohttp.http_exceptions import PayloadEncodingError

from hedgerow_gateway.limits import Pass
from hedgerow_gateway.routes.inflate import check_encoding, inflate
from hedgerow_shared.errors import BadInputError, DeadlineError, TooLargeError

DRAIN_READ_S = 2.0
"""What a body that is still on its way gets once this gateway goes down."""


class BodyReader:
    """Reads bodies for one gateway. `hurry` cuts short what is still being read."""

    def __init__(self, max_body_bytes: int) -> None:
        self._limit = max_body_bytes
        self._waiting: set[asyncio.Timeout] = set()
        self._most_s = float("inf")

    def hurry(self) -> None:
        """Give every body that is on its way, or begins to be, `DRAIN_READ_S` from now."""
        self._most_s = DRAIN_READ_S
        end_s = asyncio.get_running_loop().time() + DRAIN_READ_S
        for timeout in self._waiting:
            timeout.reschedule(min(timeout.when() or end_s, end_s))

    async def read(self, request: web.Request, held: Pass, ttl_s: float) -> bytes:
        """The whole body, decompressed. What was received counts in `held`, not what a header
        says will come: a connection that sends nothing takes nothing from others.

        Raises TooLargeError, OverloadedError, DeadlineError after `ttl_s`, BadInputError.
        """
        encoding = check_encoding(request.headers.get("Content-Encoding"))
        if (request.content_length or 0) > self._limit:
            raise self._too_large()
        try:
            data = await self._raw(request, held, ttl_s)
        except (
            web.HTTPBadRequest,
            web.RequestPayloadError,
            PayloadEncodingError,
            ValueError,
        ) as error:
            raise BadInputError(f"the body could not be read: {type(error).__name__}") from None
        if not encoding:
            return data
        plain = await inflate(data, encoding, self._limit)
        held.grow(max(len(plain) - len(data), 0))
        return plain

    async def _raw(self, request: web.Request, held: Pass, ttl_s: float) -> bytes:
        stream = request.content
        if stream.is_eof():  # it came with the headers, as short ones do
            return await self._pieces(stream, held, bytearray())
        received = bytearray()
        try:
            async with asyncio.timeout(min(ttl_s, self._most_s)) as timeout:
                self._waiting.add(timeout)
                try:
                    return await self._pieces(stream, held, received)
                finally:
                    self._waiting.discard(timeout)
        except TimeoutError:
            announced = request.content_length
            raise DeadlineError(
                f"the body did not arrive in time: {len(received)} of "
                f"{'an unknown number of' if announced is None else announced} bytes"
            ) from None

    async def _pieces(self, stream: StreamReader, held: Pass, received: bytearray) -> bytes:
        while piece := await stream.readany():
            if len(received) + len(piece) > self._limit:
                raise self._too_large()
            held.grow(len(piece))
            received += piece
        return bytes(received)

    def _too_large(self) -> TooLargeError:
        return TooLargeError(
            f"the body is larger than {self._limit} bytes (--max-body-bytes): send fewer inputs "
            "at a time"
        )
