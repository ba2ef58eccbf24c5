"""NATS service discovery ($SRV.PING, INFO, STATS; ADR-32), so that `nats micro ls` finds us.

Only discovery: the hot path never goes through it. nats-py's own micro module times handlers
(ours only enqueue), answers errors with repr(exception), and has no pending limits.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec

from hedgerow_shared.bus import Bus, Message, Subscription
from hedgerow_shared.errors import HedgerowError
from hedgerow_shared.subjects import SERVICE_NAME, is_inbox

_TYPES = "io.nats.micro.v1"
_log = logging.getLogger("hedgerow.micro")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One subject a service answers, as discovery shows it."""

    name: str
    subject: str
    queue_group: str
    metadata: Mapping[str, str] | None = None


class Micro:
    """Answers $SRV.{PING,INFO,STATS}, also with .hedgerow and .hedgerow.<service_id>.

    metadata: strings by name; may be replaced while running, as models come and go
    stats: numbers of the moment; they become the `data` of every endpoint in STATS
    """

    def __init__(
        self,
        bus: Bus,
        *,
        service_id: str,
        version: str,
        description: str = "",
        metadata: Mapping[str, str] | None = None,
        endpoints: Sequence[Endpoint] = (),
        stats: Callable[[], Mapping[str, Any]] | None = None,
    ) -> None:
        self._bus = bus
        self.service_id = service_id
        self.version = version
        self.description = description
        self.metadata = dict(metadata or {})
        self.endpoints = tuple(endpoints)
        self._stats = stats
        self._started = datetime.now(UTC)
        self._subscriptions: list[Subscription] = []

    async def start(self) -> None:
        """Begin to answer; returns once the server knows. Raises what `Bus.barrier` raises."""
        for verb, answer in (("PING", self._ping), ("INFO", self._info), ("STATS", self._status)):
            for suffix in ("", f".{SERVICE_NAME}", f".{SERVICE_NAME}.{self.service_id}"):
                subscription = await self._bus.subscribe(
                    f"$SRV.{verb}{suffix}", self._answer(answer), max_pending_msgs=256
                )
                self._subscriptions.append(subscription)
        await self._bus.barrier()

    async def stop(self) -> None:
        while self._subscriptions:
            await self._subscriptions.pop().unsubscribe()

    def _answer(self, build: Callable[[], dict[str, Any]]) -> Callable[[Message], None]:
        def handler(message: Message) -> None:
            if not is_inbox(message.reply):
                return
            try:
                self._bus.publish_nowait(message.reply, msgspec.json.encode(build()))
            except HedgerowError as error:
                _log.warning("micro: no answer on %s: %s", message.subject, error)

        return handler

    def _identity(self, kind: str) -> dict[str, Any]:
        return {
            "type": f"{_TYPES}.{kind}_response",
            "name": SERVICE_NAME,
            "id": self.service_id,
            "version": self.version,
            "metadata": self.metadata,
        }

    def _ping(self) -> dict[str, Any]:
        return self._identity("ping")

    def _info(self) -> dict[str, Any]:
        endpoints = [
            {
                "name": e.name,
                "subject": e.subject,
                "queue_group": e.queue_group,
                "metadata": dict(e.metadata or {}),
            }
            for e in self.endpoints
        ]
        return {
            **self._identity("info"),
            "description": self.description,
            "endpoints": endpoints,
        }

    def _status(self) -> dict[str, Any]:
        """Counters of requests are 0 where the service does not give them in its stats:
        `num_requests`, `num_errors`, `processing_time` (ns), `average_processing_time` (ns)."""
        data = dict(self._stats()) if self._stats is not None else {}
        endpoints = [
            {
                "name": e.name,
                "subject": e.subject,
                "queue_group": e.queue_group,
                "num_requests": int(data.get("num_requests", 0)),
                "num_errors": int(data.get("num_errors", 0)),
                "last_error": str(data.get("last_error", "")),
                "processing_time": int(data.get("processing_time", 0)),
                "average_processing_time": int(data.get("average_processing_time", 0)),
                "data": data,
            }
            for e in self.endpoints
        ]
        return {
            **self._identity("stats"),
            "started": self._started.isoformat().replace("+00:00", "Z"),
            "endpoints": endpoints,
        }
