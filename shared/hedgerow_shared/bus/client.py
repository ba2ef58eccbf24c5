"""The connection: one per process and lane, used by every service."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

from nats import errors as nats_errors

from hedgerow_shared.bus import dial
from hedgerow_shared.bus.inbox import Call, Gather, Inbox, is_no_responders
from hedgerow_shared.bus.message import NO_HEADERS, Message, from_nats, header_bytes
from hedgerow_shared.bus.nats_client import NatsClient
from hedgerow_shared.bus.options import BusOptions, without_password
from hedgerow_shared.bus.subscription import Pending, Subscription
from hedgerow_shared.bus.watchdog import watch
from hedgerow_shared.errors import (
    ClientError,
    DeadlineError,
    ForbiddenError,
    NoWorkerError,
    RetryableError,
    StartupError,
    TooLargeError,
    WorkerLostError,
)

_RESERVE_BYTES = 8 * 1024
"""Left free under max_payload: going over it by a header makes the server cut us off for good."""

_BARRIER_S = 20
"""Longer than the ping budget: the connection is declared dead before a barrier gives up."""

_log = logging.getLogger("hedgerow.bus")


class Bus:
    """A NATS connection that fails fast, reconnects for ever and never goes deaf in silence.

    Messages are at most once: a lost connection loses what was on the way, and every request
    in flight hears of it at once. Make one with `Bus.connect`.
    """

    def __init__(self, options: BusOptions, on_closed: Callable[[], None] | None) -> None:
        self._options = options
        self._on_closed = on_closed
        self._nc = NatsClient()
        self._inbox = Inbox(options.inbox_prefix)
        self._loop = asyncio.get_running_loop()
        self._closing = False
        self._down: asyncio.Future[None] = self._loop.create_future()
        self._refused: dict[str, str] = {}
        self._last_note = ""
        self._watchdog: asyncio.Task[None] | None = None

    @classmethod
    async def connect(
        cls, options: BusOptions, *, on_closed: Callable[[], None] | None = None
    ) -> Bus:
        """Connect within `options.connect_deadline_s`, or raise StartupError (one line).

        on_closed: called once if the connection ends for good without `close`; the process
            should then exit non-zero, so that its supervisor starts it again
        """
        bus = cls(options, on_closed)
        await dial.connect(
            bus._nc,
            options,
            on_error=bus._on_error,
            on_down=bus._on_down,
            on_up=bus._on_up,
            on_end=bus._on_end,
        )
        await bus._nc.listen(bus._inbox.wildcard, "", bus._take_reply)
        try:
            await bus.barrier()
        except (ForbiddenError, RetryableError) as error:
            await bus.close()
            raise StartupError(
                f"bus: {bus.url}: no replies can reach {options.inbox_prefix}.>: {error.message}; "
                "set the inbox prefix this user may subscribe to"
            ) from None
        bus._watchdog = asyncio.create_task(watch(bus._nc))
        return bus

    @property
    def url(self) -> str:
        """Where we are connected, or where we try to, without the password."""
        current = self._nc.connected_url
        return without_password(current.geturl() if current else self._options.url)

    @property
    def is_connected(self) -> bool:
        return self._nc.is_connected and not self._nc.is_deaf

    @property
    def max_payload(self) -> int:
        """The server's limit on headers plus body, in bytes."""
        return self._nc.max_payload

    @property
    def max_message_bytes(self) -> int:
        """Our limit on headers plus body: below the server's, which closes whoever goes over."""
        return max(self.max_payload - _RESERVE_BYTES, self.max_payload // 2)

    @property
    def in_flight(self) -> int:
        """Requests that wait for their reply."""
        return self._inbox.in_flight

    @property
    def client(self) -> NatsClient:
        """For the JetStream part of this package only."""
        return self._nc

    async def publish(
        self,
        subject: str,
        data: bytes,
        *,
        reply: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Send one message and return when it is queued for the socket.

        While disconnected, messages are kept and sent after the reconnect. Raises
        TooLargeError over `max_message_bytes`, RetryableError when closed or when nothing
        more can be kept, ClientError for a subject or header no server would take.
        """
        size = len(data) + header_bytes(headers)
        if size > self.max_message_bytes:
            raise TooLargeError(
                f"message of {size} bytes to {subject}: the bus takes {self.max_message_bytes} "
                f"(the server's max_payload is {self.max_payload})"
            )
        try:
            await self._nc.publish(subject, data, reply, dict(headers) if headers else None)
        except nats_errors.OutboundBufferLimitError:
            raise RetryableError(f"bus: {self.url} is away and the send buffer is full") from None
        except (nats_errors.ConnectionClosedError, nats_errors.ConnectionDrainingError):
            raise RetryableError("bus: the connection is closed") from None
        except (nats_errors.BadSubjectError, nats_errors.BadHeaderError) as error:
            raise ClientError(f"bus: cannot publish to {subject!r}: {error}") from None

    async def request(
        self,
        subject: str,
        data: bytes,
        *,
        timeout_s: float,
        headers: Mapping[str, str] | None = None,
    ) -> Message:
        """Send one message and wait for its first reply.

        Raises NoWorkerError at once when nobody listens, WorkerLostError at once when the
        connection is or goes down, DeadlineError after `timeout_s`, ForbiddenError when this
        user may not publish there, and what `publish` raises.
        """
        self._check_up()
        future: asyncio.Future[Message] = self._loop.create_future()
        call = Call(subject, future)
        reply = self._inbox.open(call)
        timer = self._loop.call_later(timeout_s, _expire, call, timeout_s)
        try:
            await self.publish(subject, data, reply=reply, headers=headers)
            message = await future
        finally:
            timer.cancel()
            self._inbox.close(reply)
        if message.headers is not NO_HEADERS and is_no_responders(message):
            raise NoWorkerError(f"nobody listens on {subject}")
        return message

    async def request_many(
        self, subject: str, data: bytes, *, timeout_s: float, max_replies: int | None = None
    ) -> list[Message]:
        """Send one message and collect replies for `timeout_s`, or until there are `max_replies`.

        Returns at once with an empty list when nobody listens. Raises like `request`, except
        that running out of time is the normal end.
        """
        self._check_up()
        done: asyncio.Future[None] = self._loop.create_future()
        gather = Gather(subject, max_replies, done)
        reply = self._inbox.open(gather)
        try:
            await self.publish(subject, data, reply=reply)
            await asyncio.wait({done}, timeout=timeout_s)
        finally:
            self._inbox.close(reply)
        if done.done():
            done.result()
        return gather.replies

    async def subscribe(
        self,
        subject: str,
        handler: Callable[[Message], None],
        *,
        queue: str = "",
        max_pending_msgs: int = 4096,
        max_pending_bytes: int = 64 * 1024 * 1024,
        on_dropped: Callable[[str], None] | None = None,
    ) -> Subscription:
        """Hand every message of `subject` to `handler`, in order, on the loop.

        handler: a plain function that returns quickly (it should only enqueue)
        queue: members of one queue group share the messages
        on_dropped: called with the reply subject of a message over the pending limits, so
            that its sender can be answered
        The server knows of it after the next `barrier`, which also tells if it was refused.
        """
        pending = Pending(
            handler, max_msgs=max_pending_msgs, max_bytes=max_pending_bytes, on_dropped=on_dropped
        )
        try:
            sid = await self._nc.listen(subject, queue, pending.take)
        except nats_errors.BadSubjectError as error:
            raise ClientError(f"bus: cannot subscribe to {subject!r}: {error}") from None
        except nats_errors.Error as error:
            raise RetryableError(f"bus: cannot subscribe to {subject!r}: {error}") from None

        async def leave(after_what_is_on_the_way: bool) -> None:
            if self._nc.is_connected:
                await self._nc.stop_listening(sid)
                if after_what_is_on_the_way:
                    await self.barrier()
            self._nc.forget(sid)

        return Subscription(subject, queue, pending, leave)

    async def barrier(self) -> None:
        """Return once the server has processed all that was published or subscribed before.

        Raises ForbiddenError when one of the subscriptions was refused, WorkerLostError when
        the connection goes down meanwhile.
        """
        self._check_up()
        down = self._down
        await self._nc.written()
        flush = asyncio.ensure_future(self._nc.flush(timeout=_BARRIER_S))
        await asyncio.wait({flush, down}, return_when=asyncio.FIRST_COMPLETED)
        flush.cancel()
        if (await asyncio.gather(flush, return_exceptions=True))[0] is not None:
            raise self._lost()
        if self._refused:
            subject, text = self._refused.popitem()
            raise ForbiddenError(f"this user may not subscribe to {subject} ({text})")

    async def close(self, *, patience_s: float = 2.0) -> None:
        """Close, after what was published reached the server.

        Requests still in flight get `patience_s` to be answered; unlike nats-py's drain, their
        replies keep arriving meanwhile. Subscriptions are the caller's to drain first.
        """
        if self._closing:
            return
        self._closing = True
        end_s = self._loop.time() + patience_s
        while self._inbox.in_flight and self.is_connected and self._loop.time() < end_s:
            await asyncio.sleep(0.005)
        if self._watchdog is not None:
            self._watchdog.cancel()
        try:
            await asyncio.wait_for(self.barrier(), max(patience_s, 0.5))
        except (RetryableError, ForbiddenError, TimeoutError):
            _log.warning("bus: closing %s without its last acknowledgement", self.url)
        await self._nc.close()

    def _check_up(self) -> None:
        if not self._nc.is_connected:
            raise WorkerLostError(f"bus: not connected to {self.url}")

    def _lost(self) -> WorkerLostError:
        return WorkerLostError(f"bus: the connection to {self.url} went down")

    def _take_reply(self, msg: Any) -> None:
        self._inbox.deliver(from_nats(msg))

    async def _on_error(self, error: Exception) -> None:
        # nats-py awaits this in its reader, and an exception here would end the reader.
        try:
            self._note(error)
        except Exception:  # noqa: BLE001 - outermost, see above
            _log.exception("bus: reporting an error failed")

    def _note(self, error: Exception) -> None:
        refusal = dial.parse_refusal(str(error))
        if refusal is None:
            text = str(error) or type(error).__name__
            level = logging.DEBUG if text == self._last_note else logging.WARNING
            _log.log(level, "bus: %s: %s", self.url, text)
            self._last_note = text
            return
        action, subject = refusal
        _log.error("bus: this user may not %s %s", action, subject)
        if action == "subscribe to":
            self._refused[subject] = str(error)
        else:
            text = f"this user may not publish to {subject}"
            self._inbox.fail_subject(subject, lambda: ForbiddenError(text))

    async def _on_down(self) -> None:
        down, self._down = self._down, self._loop.create_future()
        down.set_result(None)
        self._inbox.fail_all(self._lost)
        if not self._closing:
            _log.warning("bus: lost %s", self.url)

    async def _on_up(self) -> None:
        self._last_note = ""
        _log.info("bus: back on %s", self.url)

    async def _on_end(self) -> None:
        if self._closing:
            return
        self._closing = True
        _log.error("bus: %s closed the connection for good: %s", self.url, self._nc.last_error)
        if self._watchdog is not None:
            self._watchdog.cancel()
        if self._on_closed is not None:
            self._on_closed()


def _expire(call: Call, timeout_s: float) -> None:
    call.fail(DeadlineError(f"no reply from {call.subject} within {timeout_s:g} s"))
