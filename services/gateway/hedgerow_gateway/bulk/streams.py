"""The streams of the bulk lane: made where they are missing, never changed in silence."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hedgerow_shared import subjects
from hedgerow_shared.bus.jetstream import (
    CONSUMER_EXISTS,
    NAME_IN_USE,
    NO_ROOM,
    JetStream,
    JetStreamError,
)
from hedgerow_shared.bus.jetstream_kv import stream_of
from hedgerow_shared.errors import HedgerowError, StorageError
from hedgerow_shared.jobs import consumer_name

_log = logging.getLogger("hedgerow.bulk")

_NS = 1_000_000_000
_WINDOW_S = 120
"""A chunk or result sent again within this time is recognised by its message id."""
_JOBS_BYTES = 32 << 20
_DEAD_BYTES = 16 << 20
_ENSURE_S = 1.8
_RETRY_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """max_bytes: of chunks that wait; result_max_bytes: of results that were not released.
    Both are refused over the limit, so that nothing acknowledged is pushed out.
    max_age_s: of a chunk that waits; result_max_age_s: of results, jobs and dead letters
    ack_wait_s: how long a worker may be silent about a chunk before another one gets it
    """

    replicas: int = 1
    max_bytes: int = 1 << 30
    result_max_bytes: int = 2 << 30
    max_age_s: float = 7 * 86_400
    result_max_age_s: float = 7 * 86_400
    ack_wait_s: float = 15.0


# Which switch of the gateway decides a setting, for the message that it is another one.
_SWITCHES: Mapping[tuple[str, str], str] = {
    (subjects.STREAM_BULK, "max_bytes"): "--bulk-max-bytes",
    (subjects.STREAM_BULK, "max_age"): "--bulk-max-age-s",
    (subjects.STREAM_RESULT, "max_bytes"): "--bulk-result-max-bytes",
    (subjects.STREAM_RESULT, "max_age"): "--bulk-result-max-age-s",
    (subjects.STREAM_DEAD, "max_age"): "--bulk-result-max-age-s",
    (stream_of(subjects.KV_JOBS), "max_age"): "--bulk-result-max-age-s",
}


def stream_configs(options: StreamOptions) -> list[dict[str, Any]]:
    """The four streams, as the server is asked for them."""

    def config(name: str, filters: list[str], max_bytes: int, age_s: float) -> dict[str, Any]:
        return {
            "name": name,
            "subjects": filters,
            "retention": "limits",
            "storage": "file",
            "discard": "new",
            "max_bytes": max_bytes,
            "max_age": int(age_s * _NS),
            "duplicate_window": int(min(_WINDOW_S, age_s) * _NS),
            "num_replicas": options.replicas,
        }

    age_s = options.result_max_age_s
    queue = config(
        subjects.STREAM_BULK, ["hedgerow.bulk.*.*"], options.max_bytes, options.max_age_s
    )
    results = config(
        subjects.STREAM_RESULT, ["hedgerow.result.*.*.*"], options.result_max_bytes, age_s
    )
    dead = config(subjects.STREAM_DEAD, ["hedgerow.dead.*.*.*"], _DEAD_BYTES, age_s)
    jobs = config(stream_of(subjects.KV_JOBS), [f"$KV.{subjects.KV_JOBS}.>"], _JOBS_BYTES, age_s)
    return [
        {**queue, "retention": "workqueue"},
        {**results, "allow_direct": True},
        # The newest reasons are kept: a full stream of them must not keep workers from their work.
        {**dead, "discard": "old"},
        # What makes a stream a bucket for `nats kv`.
        {**jobs, "allow_direct": True, "max_msgs_per_subject": 1, "allow_rollup_hdrs": True},
    ]


def consumer_config(alias: str, options: StreamOptions) -> dict[str, Any]:
    """What the workers of a model share. No limit of deliveries: the server would leave a chunk
    beyond it in the stream for ever; who gives up on a row are the workers, and they say so."""
    name = consumer_name(subjects.model_token(alias))
    return {
        "name": name,
        "durable_name": name,
        "filter_subject": subjects.bulk(alias),
        "ack_policy": "explicit",
        "ack_wait": int(options.ack_wait_s * _NS),
        "max_deliver": -1,
        "max_ack_pending": 65_536,
        "max_waiting": 2048,
    }


class Streams:
    """Keeps the streams and consumers of this gateway's models there. `start` never fails: a
    gateway without JetStream serves what somebody waits for, and refuses jobs with the reason."""

    def __init__(self, js: JetStream, aliases: Sequence[str], options: StreamOptions) -> None:
        self._js, self._aliases, self._options = js, aliases, options
        self._lock = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._told = ""
        self.ready = False

    def start(self) -> None:
        self._task = asyncio.create_task(self._until_ready())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def check(self) -> None:
        """Return when all is there. Raises StorageError with the reason and the remedy."""
        if self.ready:
            return
        async with self._lock:
            if not self.ready:
                try:
                    await asyncio.wait_for(self._ensure(), _ENSURE_S)
                except TimeoutError:
                    raise StorageError("JetStream does not answer") from None
                self.ready = True
                _log.info("bulk: streams and consumers are there")

    def doubt(self) -> None:
        """Something could not be stored: look again before the next job."""
        self.ready = False

    async def _until_ready(self) -> None:
        while True:
            try:
                await self.check()
            except HedgerowError as error:
                if error.message != self._told:
                    self._told = error.message
                    _log.warning("bulk: no jobs for now: %s", error.message)
            await asyncio.sleep(_RETRY_S)

    async def _ensure(self) -> None:
        for config in stream_configs(self._options):
            await self._stream(config)
        for alias in self._aliases:
            await self._consumer(consumer_config(alias, self._options))

    async def _stream(self, config: Mapping[str, Any]) -> None:
        name = str(config["name"])
        info = await self._js.stream_info(name)
        if info is None:
            try:
                await self._js.call(f"STREAM.CREATE.{name}", config)
                return
            except JetStreamError as error:
                if error.err_code == NO_ROOM:
                    raise StorageError(
                        f"stream {name} of {config['max_bytes']} bytes does not fit into what this "
                        "NATS server may store: start the gateway with smaller --bulk-max-bytes "
                        "and --bulk-result-max-bytes"
                    ) from None
                if error.err_code != NAME_IN_USE:
                    raise StorageError(f"stream {name} cannot be made: {error.message}") from None
            info = await self._js.stream_info(name) or {"config": {}}
        refuse_other(name, config, info["config"])

    async def _consumer(self, config: Mapping[str, Any]) -> None:
        stream, name = subjects.STREAM_BULK, config["name"]
        call = f"CONSUMER.CREATE.{stream}.{name}.{config['filter_subject']}"
        body = {"stream_name": stream, "action": "create", "config": config}
        try:
            await self._js.call(call, body)
        except JetStreamError as error:
            if error.err_code != CONSUMER_EXISTS:
                raise StorageError(f"consumer {name} cannot be made: {error.message}") from None
            found = (await self._js.call(f"CONSUMER.INFO.{stream}.{name}"))["config"]
            what = f"consumer {name} of {stream}"
            _refuse(what, config, found, "start all gateways with the same --bulk-ack-wait-s, or "
                    f"remove it (nats consumer rm {stream} {name}: no chunk is lost)")  # fmt: skip


def refuse_other(name: str, wanted: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    """Raise StorageError when a stream has other settings than this gateway would give it."""
    field = _other(wanted, found)
    switch = _SWITCHES.get(
        (name, field or ""), "--bulk-replicas" if field == "num_replicas" else ""
    )
    remedy = f"start this gateway with the same {switch}, or change the stream (nats stream edit)"
    if not switch:
        remedy = f"it is another program's, or an older one's: remove it (nats stream rm {name})"
    _refuse(f"stream {name}", wanted, found, remedy)


def _refuse(what: str, wanted: Mapping[str, Any], found: Mapping[str, Any], remedy: str) -> None:
    field = _other(wanted, found)
    if field is not None:
        there, here = found.get(field), wanted[field]
        raise StorageError(f"{what} exists with {field}={there!r}, wanted is {here!r}: {remedy}")


def _other(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> str | None:
    """The first field that differs; one that the server leaves out has its zero."""
    for field, value in wanted.items():
        if found.get(field, type(value)()) != value:
            return field
    return None
