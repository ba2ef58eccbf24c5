"""How much bulk work waits, by model, for /metrics: what an autoscaler looks at."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from hedgerow_gateway.bulk.streams import Streams
from hedgerow_shared import subjects
from hedgerow_shared.bus.jetstream import JetStream, Stored
from hedgerow_shared.errors import BadChunkError, HedgerowError
from hedgerow_shared.jobs import consumer_name, tally_of

_log = logging.getLogger("hedgerow.bulk")

_POLL_S = 2.0
_TEXTS: Mapping[str, tuple[str, str]] = {
    "num_pending": ("chunks_waiting", "Bulk chunks that no worker took yet"),
    "num_ack_pending": ("chunks_held", "Bulk chunks that a worker has and has not acknowledged"),
    "num_redelivered": ("chunks_redelivered", "Of those held, chunks that were held before"),
}


class Backlog(Collector):
    """Asks the stream every two seconds. Each gateway shows the same numbers."""

    def __init__(self, js: JetStream, streams: Streams, aliases: Sequence[str]) -> None:
        self._js, self._streams, self._aliases = js, streams, aliases
        self._task: asyncio.Task[None] | None = None
        self._counts: dict[str, Mapping[str, int]] = {}
        self._oldest_s: dict[str, float] = {}
        self._tokens: dict[str, int] = {}

    def start(self) -> None:
        self._task = asyncio.create_task(self._poll())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def collect(self) -> Iterable[Metric]:
        for key, (name, text) in _TEXTS.items():
            family = GaugeMetricFamily(f"hedgerow_bulk_{name}", text, labels=["model"])
            for alias, counts in self._counts.items():
                family.add_metric([alias], counts[key])
            yield family
        for name, text, values in (
            ("oldest_seconds", "Age of the oldest bulk chunk that is not done", self._oldest_s),
            (
                "tokens_waiting",
                "Tokens of bulk chunks that are not done, were all as large as the oldest",
                self._tokens,
            ),
        ):
            family = GaugeMetricFamily(f"hedgerow_bulk_{name}", text, labels=["model"])
            for alias, value in values.items():
                family.add_metric([alias], value)
            yield family

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(_POLL_S)
            if not self._streams.ready:
                continue
            try:
                await self._look()
            except HedgerowError as error:
                _log.debug("bulk: no figures: %s", error.message)

    async def _look(self) -> None:
        stream = subjects.STREAM_BULK
        for alias in self._aliases:
            name = consumer_name(subjects.model_token(alias))
            info = await self._js.call(f"CONSUMER.INFO.{stream}.{name}")
            counts = self._counts[alias] = {key: int(info.get(key, 0)) for key in _TEXTS}
            oldest = await self._js.first(stream, subjects.bulk(alias))
            self._oldest_s[alias] = 0.0 if oldest is None else age_s(oldest.time)
            chunks = counts["num_pending"] + counts["num_ack_pending"]
            self._tokens[alias] = chunks * (0 if oldest is None else _tokens(oldest))


def _tokens(chunk: Stored) -> int:
    """Of one chunk; 0 where somebody else put a message there."""
    try:
        return tally_of(chunk.headers).tokens
    except BadChunkError:
        return 0


def age_s(timestamp: str) -> float:
    """Seconds since an RFC 3339 time of the server; 0 for one in the future or unreadable."""
    try:
        # datetime takes six digits of a second, the server sends nine.
        whole, _, rest = timestamp.partition(".")
        digits = rest.rstrip("Z")[:6] or "0"
        then = datetime.fromisoformat(f"{whole.rstrip('Z')}.{digits.ljust(6, '0')}")
    except ValueError:
        return 0.0
    return max((datetime.now(UTC) - then.replace(tzinfo=UTC)).total_seconds(), 0.0)
