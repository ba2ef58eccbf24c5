"""The connection: one per process and lane, used by every service."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping

from nats import errors as nats_errors

from hedgerow_shared.bus.inbox import Call, Gather, Inbox
from hedgerow_shared.bus.link import Link
from hedgerow_shared.bus.message import Message, encode_headers, is_subject
from hedgerow_shared.bus.nats_client import NatsClient
from hedgerow_shared.bus.options import BusOptions
from hedgerow_shared.bus.subscription import Pending, Subscription
from hedgerow_shared.errors import (
    ClientError,
    DeadlineError,
    ForbiddenError,
    RetryableError,
    StartupError,
    TooLargeError,
)

_RESERVE_BYTES = 8 * 1024
"""Left free under max_payload: going over it by a header makes the server cut us off for good."""

_PATIENT_BYTES = 4 * 1024 * 1024


class Bus:
    """A NATS connection that fails fast, reconnects for ever and never goes deaf in silence.

    Messages are at most once: a lost connection loses what was on the way, and every request
    in flight hears of it at once. Make one with `Bus.connect`.
    """

    def __init__(self, options: BusOptions, on_closed: Callable[[], None] | None) -> None:
        self._inbox_prefix = options.inbox_prefix
        self._inbox = Inbox(options.inbox_prefix)
        self._link = Link(
            options, on_down=self._on_down, on_refused=self._on_refused, on_closed=on_closed
        )
        self._nc = self._link.nc
        self._loop = asyncio.get_running_loop()

    @classmethod
    async def connect(
        cls, options: BusOptions, *, on_closed: Callable[[], None] | None = None
    ) -> Bus:
        """Connect within `options.connect_deadline_s`, or raise StartupError (one line).

        on_closed: called once if the connection ends for good without `close`; the process
            should then exit non-zero, so that its supervisor starts it again
        """
        bus = cls(options, on_closed)
        await bus._link.open()
        try:
            await bus._nc.listen(bus._inbox.wildcard, "", bus._inbox.deliver)
            await bus.barrier()
        except BaseException as error:
            await bus.close(patience_s=0)
            if not isinstance(error, (ForbiddenError, RetryableError)):
                raise
            raise StartupError(
                f"bus: {bus.url}: no replies can reach {options.inbox_prefix}.>: {error.message}; "
                "set the inbox prefix this user may subscribe to"
            ) from None
        return bus

    @property
    def url(self) -> str:
        """Where we are connected, or where we try to, without the password."""
        return self._link.url

    @property
    def is_connected(self) -> bool:
        return self._link.is_connected

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
        """For the tests of this package only."""
        return self._nc

    def new_inbox(self) -> str:
        """A subject only this connection listens on, for replies that come by `subscribe`:
        what JetStream delivers keeps the subject it was stored under."""
        return f"{self._inbox_prefix}.{secrets.token_hex(11)}"

    def publish_nowait(
        self,
        subject: str,
        data: bytes,
        *,
        reply: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Send one message, or queue it for the socket.

        While disconnected, messages are kept and sent after the reconnect. Raises
        TooLargeError over `max_message_bytes`, RetryableError when closed or when nothing
        more can be kept, ClientError for a subject or header no server would take.
        """
        block = encode_headers(headers) if headers else b""
        size = len(block) + len(data)
        if size > self.max_message_bytes:
            raise TooLargeError(
                f"message of {size} bytes to {subject}: the bus takes {self.max_message_bytes} "
                f"(the server's max_payload is {self.max_payload})"
            )
        for name in (subject, reply) if reply else (subject,):
            if not is_subject(name):
                raise ClientError(f"bus: {name!r} cannot be a subject")
        try:
            self._nc.send(subject, reply, block, data)
        except nats_errors.OutboundBufferLimitError:
            raise RetryableError(f"bus: the send buffer to {self.url} is full") from None
        except nats_errors.ConnectionClosedError:
            raise RetryableError("bus: the connection is closed") from None

    async def publish(
        self,
        subject: str,
        data: bytes,
        *,
        reply: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Like `publish_nowait`, but waits for a slow socket before it queues too much."""
        if self._nc.pending_data_size > _PATIENT_BYTES:
            await self._nc.written()
        self.publish_nowait(subject, data, reply=reply, headers=headers)

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
        call = await self.ask(subject, data, headers=headers)
        try:
            if not await call.wait(timeout_s):
                raise DeadlineError(f"no reply from {subject} within {timeout_s:g} s")
            return call.result()
        finally:
            call.close()

    async def ask(
        self, subject: str, data: bytes, *, headers: Mapping[str, str] | None = None
    ) -> Call:
        """Send one message; its reply is waited for with the call that comes back, which must be
        closed. Raises like `request`, but for the deadline."""
        self._link.check_up()
        call = Call(subject, self._inbox, self._loop)
        try:
            await self.publish(subject, data, reply=call.reply, headers=headers)
        except BaseException:
            call.close()
            raise
        return call

    async def request_many(
        self,
        subject: str,
        data: bytes,
        *,
        timeout_s: float,
        max_replies: int | None = None,
        is_last: Callable[[Message], bool] | None = None,
    ) -> list[Message]:
        """Send one message and collect replies for `timeout_s`, or until there are `max_replies`
        or `is_last` says of one that it is the last.

        Returns at once with an empty list when nobody listens. Raises like `request`, except
        that running out of time is the normal end.
        """
        self._link.check_up()
        done: asyncio.Future[None] = self._loop.create_future()
        gather = Gather(subject, max_replies, done, is_last)
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
        the connection is or goes down.
        """
        await self._link.barrier()

    async def close(self, *, patience_s: float = 2.0) -> None:
        """Close, after what was published reached the server.

        Requests still in flight get `patience_s` to be answered; unlike nats-py's drain, their
        replies keep arriving meanwhile. Subscriptions are the caller's to drain first.
        """
        if self._nc.is_closed:
            return
        end_s = self._loop.time() + patience_s
        while self._inbox.in_flight and self.is_connected and self._loop.time() < end_s:
            await asyncio.sleep(0.005)
        await self._link.close(max(patience_s, 0.5))

    def _on_down(self) -> None:
        self._nc.drop_unsent(self._inbox.prefix)
        self._inbox.fail_all(self._link.lost)

    def _on_refused(self, subject: str) -> None:
        text = f"this user may not publish to {subject}"
        self._inbox.fail_subject(subject, lambda: ForbiddenError(text))
