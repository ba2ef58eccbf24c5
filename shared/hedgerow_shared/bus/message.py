"""A message as the rest of the house sees it, and its headers as the wire sees them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from hedgerow_shared.errors import ClientError

NO_HEADERS: Mapping[str, str] = MappingProxyType({})

_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+\-.^_`|~]+")
_BREAKS = re.compile(r"[\r\n]+")


class Message(msgspec.Struct, frozen=True, gc=False):
    """What arrived. It cannot answer itself: nats-py's `respond` echoes the request's headers.

    reply: where an answer goes, or "" when none is wanted
    """

    subject: str
    data: bytes
    reply: str = ""
    headers: Mapping[str, str] = NO_HEADERS


def from_nats(msg: Any) -> Message:
    return Message(msg.subject, msg.data, msg.reply, msg.headers or NO_HEADERS)


def encode_headers(headers: Mapping[str, str]) -> bytes:
    """The header block of a message. The server counts it against max_payload.

    Line breaks in a value become spaces. Raises ClientError for a name that is no token.
    """
    lines = ["NATS/1.0"]
    for name, value in headers.items():
        if not _TOKEN.fullmatch(name):
            raise ClientError(f"header name {name!r} must be letters, digits or !#$%&'*+-.^_`|~")
        lines.append(f"{name}: {_BREAKS.sub(' ', value).strip()}")
    return "\r\n".join([*lines, "", ""]).encode()
