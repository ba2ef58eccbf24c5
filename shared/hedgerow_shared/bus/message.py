"""A message as the rest of the house sees it, and its headers as the wire sees them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

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


def is_subject(text: str) -> bool:
    """True for what can be published to: some text, with nothing that ends a word on the wire."""
    return bool(text) and text.isprintable() and " " not in text


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


def decode_headers(block: bytes) -> Mapping[str, str]:
    """Read a header block. A status of the server becomes the header `Status`.

    Raises ValueError when it is not one. A name given twice keeps its last value; lines
    without a name are left out.
    """
    first, *lines = block.decode("utf-8", "replace").split("\r\n")
    version, _, status = first.partition(" ")
    if version != "NATS/1.0":
        raise ValueError("a header block without NATS/1.0")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if colon and _TOKEN.fullmatch(name.strip()):
            headers[name.strip()] = value.strip()
    if status[:3].isdigit():
        headers["Status"] = status[:3]
    return headers
