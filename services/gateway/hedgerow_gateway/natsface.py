"""The same use cases on NATS subjects, for any client in any language."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from hedgerow_gateway.bodies import Form, decode, encode, form_of
from hedgerow_gateway.call import Call, read_call, read_ttl
from hedgerow_gateway.core import check_reply
from hedgerow_gateway.failures import error_body, headline, retry_headers, writable
from hedgerow_gateway.limits import Gate, Pass
from hedgerow_gateway.metrics import Metrics
from hedgerow_shared.bus import Bus, Message, Subscription
from hedgerow_shared.errors import HedgerowError, OverloadedError, RetryableError, TooLargeError
from hedgerow_shared.subjects import HEADER_ERROR, HEADER_ERROR_CODE, INBOXES, QUEUE_GATEWAYS

_log = logging.getLogger("hedgerow.nats")

Serve = Callable[[Mapping[str, Any], Call], Awaitable[tuple[str, list[bytes]]]]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A subject and what serves it. alias: the model it names; None for `hedgerow.v1.models`.
    A subject that ends in `*` names a job there, which goes into the body."""

    route: str
    subject: str
    alias: str | None
    serve: Serve


class NatsFace:
    """Answers requests on the public subjects, as one member of the queue group `gateways`.

    reply_prefix: a request whose reply subject begins otherwise is dropped. A caller may not
        name an internal subject and have the gateway, which may publish there, do it for him.
    """

    def __init__(
        self,
        bus: Bus,
        gate: Gate,
        metrics: Metrics,
        *,
        ttl_s: float,
        max_ttl_s: float,
        reply_prefix: tuple[str, ...] = INBOXES,
    ) -> None:
        self._bus, self._gate, self._metrics = bus, gate, metrics
        self._reply_prefix = reply_prefix
        self._ttl_s, self._max_ttl_s = ttl_s, max_ttl_s
        self._subscriptions: list[Subscription] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self.counts = {"num_requests": 0, "num_errors": 0, "num_dropped": 0, "processing_time": 0}

    async def start(self, endpoints: list[Endpoint]) -> None:
        """Subscribe; returns once the server knows."""
        for endpoint in endpoints:
            subscription = await self._bus.subscribe(
                endpoint.subject,
                self._taker(endpoint),
                queue=QUEUE_GATEWAYS,
                on_dropped=self._dropped,
            )
            self._subscriptions.append(subscription)
        await self._bus.barrier()

    async def drain(self, patience_s: float) -> None:
        """Leave the queue group, then finish what was taken."""
        while self._subscriptions:
            with contextlib.suppress(RetryableError):  # the bus is gone: nothing comes any more
                await self._subscriptions.pop().drain()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=patience_s)

    def stats(self) -> dict[str, Any]:
        """For $SRV.STATS: all endpoints together; times in ns."""
        done = max(self.counts["num_requests"], 1)
        return {**self.counts, "average_processing_time": self.counts["processing_time"] // done}

    def _dropped(self, reply: str) -> None:
        if reply.startswith(self._reply_prefix):
            self._fail(reply, _FULL, "json")

    def _taker(self, endpoint: Endpoint) -> Callable[[Message], None]:
        def take(message: Message) -> None:
            if not message.reply.startswith(self._reply_prefix):
                self.counts["num_dropped"] += 1
                _log.debug("nats: reply subject %.80r is no inbox: dropped", message.reply)
                return
            task = asyncio.get_running_loop().create_task(self._serve(endpoint, message))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        return take

    async def _serve(self, endpoint: Endpoint, message: Message) -> None:
        began_s = perf_counter()
        headers = {k.lower(): v for k, v in message.headers.items()}
        form = form_of(message.data, headers.get("content-type"))
        model, code = endpoint.alias or "", "ok"
        held: Pass | None = None
        try:
            held = self._gate.enter(len(message.data))
            call = read_call(
                headers,
                form,
                ttl_s=read_ttl(headers, self._ttl_s, self._max_ttl_s),
                alias=endpoint.alias,
                max_reply_bytes=self._bus.max_message_bytes,
            )
            body = decode(message.data, form) if message.data or endpoint.alias else {}
            if endpoint.subject.endswith(".*"):
                body["job"] = message.subject.rpartition(".")[2]
            model, pieces = await endpoint.serve(body, call)
            data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            check_reply(len(data), call)
            self._bus.publish_nowait(message.reply, data)
        except HedgerowError as error:
            code = error.code
            self._fail(message.reply, error, form)
        except Exception:  # noqa: BLE001 - outermost: a bug costs one request and tells nothing
            code = HedgerowError.code
            _log.exception("nats: %s failed", endpoint.route)
            self._fail(
                message.reply, HedgerowError("internal error; the server's log has it"), form
            )
        finally:
            if held is not None:
                held.leave()
            took_s = perf_counter() - began_s
            self.counts["num_requests"] += 1
            self.counts["num_errors"] += code != "ok"
            self.counts["processing_time"] += int(took_s * 1e9)
            self._metrics.request("nats", endpoint.route, model, code, took_s)

    def _fail(self, reply: str, error: HedgerowError, form: Form) -> None:
        """Answer an error: headers for micro clients, a body for everybody else."""
        headers = {
            HEADER_ERROR_CODE: str(error.status),
            HEADER_ERROR: writable(headline(error)[:500]),
            **retry_headers(error),
        }
        try:
            self._bus.publish_nowait(reply, encode(error_body(error), form), headers=headers)
        except TooLargeError:
            self._bus.publish_nowait(reply, b"", headers=headers)
        except HedgerowError as lost:
            _log.warning("nats: an answer could not be sent: %s", lost.message)


_FULL = OverloadedError("too many requests wait at this gateway", retry_after_s=0.2)
