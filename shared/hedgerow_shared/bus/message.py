"""A message as the rest of the house sees it, and what its headers weigh on the wire."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec

NO_HEADERS: Mapping[str, str] = MappingProxyType({})


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


def header_bytes(headers: Mapping[str, str] | None) -> int:
    """Bytes of the header block; the server counts them against max_payload, nats-py does not."""
    if not headers:
        return 0
    fields = sum(len(k.encode()) + len(v.encode()) + 4 for k, v in headers.items())
    return len("NATS/1.0\r\n") + fields + len("\r\n")
