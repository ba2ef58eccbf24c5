"""`hedgerow req SUBJECT BODY`: one request over NATS, for people without a NATS client at hand."""

from __future__ import annotations

import base64
import json
import logging
import os
import re
import sys
from typing import Any

import msgpack

from hedgerow_shared.bus import Bus, BusOptions, Message
from hedgerow_shared.bus.message import is_subject
from hedgerow_shared.errors import HedgerowError, StartupError
from hedgerow_shared.subjects import HEADER_CONTENT_TYPE, HEADER_ERROR, HEADER_ERROR_CODE

JSON, MSGPACK = "application/json", "application/msgpack"
_MAP_OR_LIST = re.compile(rb"[\x80-\x9f\xdc-\xdf]")
"""The first byte of msgpack that holds more than one value."""


async def req(
    subject: str, body: str, options: BusOptions, *, timeout_s: float, use_msgpack: bool
) -> int:
    """Send, print the reply as JSON on stdout, return the exit status: 0, or 1 for an error reply.

    body: JSON; "-" reads it from stdin. Raises StartupError when it cannot be sent as what was
    asked for, or when there is no bus.
    """
    if not is_subject(subject):
        raise StartupError(f"SUBJECT {subject!r}: words joined by '.', with no white space")
    text = decode(sys.stdin.buffer.read() if body == "-" else os.fsencode(body))
    data = encode(text) if use_msgpack else text.encode()
    # Refusals of the bus are raised as well as logged: a person reads them once, below.
    logging.getLogger("hedgerow.bus").addHandler(logging.NullHandler())
    bus = await Bus.connect(options)
    try:
        headers = {HEADER_CONTENT_TYPE: MSGPACK if use_msgpack else JSON}
        reply = await bus.request(subject, data, timeout_s=timeout_s, headers=headers)
    except HedgerowError as error:
        about = "" if subject in error.message else f"{subject}: "
        sys.stderr.write(f"hedgerow: {about}{error.message}\n")
        return 1
    finally:
        await bus.close()
    print(readable(reply))
    code = reply.headers.get(HEADER_ERROR_CODE)
    if code:
        sys.stderr.write(f"hedgerow: error {code}: {reply.headers.get(HEADER_ERROR, '')}\n")
        return 1
    return 0


def decode(body: bytes) -> str:
    """Raises StartupError for bytes that are no text, so no JSON either."""
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise StartupError(
            f"BODY is not UTF-8: byte 0x{body[error.start]:02x} at {error.start} ({error.reason}); "
            "write it as UTF-8, or as \\u and four hex digits"
        ) from None


def encode(text: str) -> bytes:
    """JSON text as msgpack. Raises StartupError when it is not JSON, or beyond msgpack."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise StartupError(f"BODY is not JSON ({error})") from None
    except RecursionError:
        raise StartupError("BODY is nested too deeply: no request needs that") from None
    try:
        packed = msgpack.packb(value)
    except (ValueError, OverflowError, RecursionError) as error:
        raise StartupError(f"BODY cannot be msgpack ({error}); send it without --msgpack") from None
    assert packed is not None, "packb returns bytes unless given a stream"
    return packed


def readable(reply: Message) -> str:
    """The body as text: JSON as it came; msgpack as JSON, raw bytes in it as base64.

    Whoever listens on a subject may answer anything: what is neither comes as text too.
    """
    if _MAP_OR_LIST.match(reply.data):
        try:
            return json.dumps(msgpack.unpackb(reply.data), default=_base64)
        except (ValueError, TypeError, RecursionError, msgpack.UnpackException):
            pass
    return reply.data.decode("utf-8", "replace")


def _base64(value: Any) -> str:
    if not isinstance(value, bytes):
        raise TypeError(f"{type(value).__name__} is nothing that JSON has")
    return base64.b64encode(value).decode("ascii")
