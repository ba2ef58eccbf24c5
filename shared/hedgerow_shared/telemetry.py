"""Logs of one line per event, trace context, and metrics where prometheus-client is installed."""

from __future__ import annotations

import logging
import re
import secrets
import sys
import time
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import msgspec

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")


class _LineFormatter(logging.Formatter):
    """`2026-01-31T12:00:00.000Z WARNING hedgerow-gateway bus: lost nats://... a=1`"""

    converter = time.gmtime

    def __init__(self, service: str) -> None:
        super().__init__(f"%(asctime)s.%(msecs)03dZ %(levelname)s {service} %(message)s")
        self.datefmt = "%Y-%m-%dT%H:%M:%S"

    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {k}={v}" for k, v in _fields(record).items())
        # A line break would let a caller's text pass for a log line of ours.
        return (super().format(record) + fields).replace("\r", "\\r").replace("\n", "\\n")


class _JsonFormatter(logging.Formatter):
    """One JSON object per line."""

    converter = time.gmtime

    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        stamp = self.formatTime(record, "%Y-%m-%dT%H:%M:%S")
        line: dict[str, Any] = {
            "time": f"{stamp}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "service": self._service,
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=str).decode()


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    """What the caller gave as `extra={"fields": {...}}`."""
    return getattr(record, "fields", {})


def setup_logging(service: str, level: str = "info", json: bool = False) -> None:
    """Log to standard error, one line per event. Raises ValueError for an unknown level.

    Structured fields go along as `extra={"fields": {"model": alias}}`.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter(service) if json else _LineFormatter(service))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # These speak for every request or retry at INFO; what matters of it we say ourselves.
    for noisy in ("aiohttp.access", "nats", "asyncio", "httpx"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


@dataclass(frozen=True, slots=True)
class Trace:
    """A W3C trace context: which request this is, across services."""

    trace_id: str
    span_id: str
    sampled: bool

    @property
    def traceparent(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-{'01' if self.sampled else '00'}"

    def child(self) -> Trace:
        """The same trace, a new span."""
        return Trace(self.trace_id, secrets.token_hex(8), self.sampled)


def new_trace(*, sampled: bool = False) -> Trace:
    return Trace(secrets.token_hex(16), secrets.token_hex(8), sampled)


def parse_traceparent(text: str | None) -> Trace | None:
    """Read a `traceparent` header; None for one that the W3C rules call invalid."""
    found = _TRACEPARENT.fullmatch(text.strip()) if text else None
    if found is None:
        return None
    version, trace_id, span_id, flags, rest = found.groups()
    if version == "ff" or (version == "00" and rest) or not int(trace_id, 16):
        return None
    if not int(span_id, 16):
        return None
    return Trace(trace_id, span_id, bool(int(flags, 16) & 1))


def prometheus() -> ModuleType | None:
    """The prometheus_client module, or None: a worker runs without it."""
    try:
        import prometheus_client
    except ImportError:
        return None
    return prometheus_client
