"""What a caller says besides the body: how long, how urgent, and in which form to answer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from hedgerow_gateway.bodies import Form
from hedgerow_gateway.fields import shown
from hedgerow_shared.errors import BadInputError
from hedgerow_shared.subjects import HEADER_PARTIAL, HEADER_TRACE, HEADER_TTL_MS
from hedgerow_shared.telemetry import parse_traceparent

HEADER_LANE = "Hedgerow-Lane"
_TTL_HEADERS = (HEADER_TTL_MS, "x-request-timeout-ms")


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """alias: the model a NATS subject names
    partial: return the good rows even if others fail
    bulk: the caller does not mind to wait behind queries
    max_reply_bytes: what the transport can carry back; None = anything
    """

    form: Form
    ttl_s: float
    alias: str | None = None
    partial: bool = False
    bulk: bool = False
    trace: str = ""
    max_reply_bytes: int | None = None


def read_call(
    headers: Mapping[str, str],
    form: Form,
    *,
    ttl_s: float,
    alias: str | None = None,
    max_reply_bytes: int | None = None,
) -> Call:
    """headers: looked up in any letter case (a CIMultiDict, or a dict in lower case)
    ttl_s: see `read_ttl`

    Raises BadInputError for a lane that is none, and for anything but true and false where one
    of them is wanted.
    """
    lane = (_header(headers, HEADER_LANE) or "query").lower()
    if lane not in ("query", "bulk"):
        raise BadInputError(f"must be query or bulk, found {shown(lane)}", param=HEADER_LANE)
    partial = (_header(headers, HEADER_PARTIAL) or "false").lower()
    if partial not in ("true", "1", "false", "0"):
        raise BadInputError(f"must be true or false, found {shown(partial)}", param=HEADER_PARTIAL)
    trace = parse_traceparent(headers.get(HEADER_TRACE))
    return Call(
        form=form,
        ttl_s=ttl_s,
        alias=alias,
        partial=partial in ("true", "1"),
        bulk=lane == "bulk",
        trace=trace.traceparent if trace else "",
        max_reply_bytes=max_reply_bytes,
    )


def read_ttl(headers: Mapping[str, str], ttl_s: float, max_ttl_s: float) -> float:
    """Seconds a request may take: what its caller says, else `ttl_s`; never over `max_ttl_s`.

    Raises BadInputError for a time that is not a positive number.
    """
    for name in _TTL_HEADERS:
        text = _header(headers, name)
        if text is not None:
            return min(_positive_ms(name, text), max_ttl_s)
    return min(ttl_s, max_ttl_s)


def _header(headers: Mapping[str, str], name: str) -> str | None:
    found = headers.get(name)
    return headers.get(name.lower()) if found is None else found


def _positive_ms(name: str, text: str) -> float:
    try:
        ms = float(text)
    except ValueError:
        ms = math.nan
    if not 0 < ms < math.inf:
        raise BadInputError(
            f"must be a positive number of milliseconds, found {shown(text)}", param=name
        )
    return ms / 1e3
