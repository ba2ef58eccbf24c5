"""nats-py's client with its sharp edges filed off; every use of its insides is in this file.

Written against 2.16; tests/shared/test_bus_traps.py fails when a later version moves them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from nats import errors as nats_errors
from nats.aio.client import Client
from nats.protocol.command import hpub_cmd, pub_cmd

from hedgerow_shared.bus.transport import Transport

_log = logging.getLogger("hedgerow.bus")


class NatsClient(Client):
    """What is changed, and why:

    - a late PONG for a flush that was given up no longer ends the reader
    - a message whose subject, reply or headers are not text is dropped; it ended the reader too
    """

    _ours: Transport | None = None

    def use_transport(self, transport: Transport) -> None:
        """Connect through `transport` instead of a plain TcpTransport."""
        self._transport = self._ours = transport

    def hang_up(self) -> None:
        """Close the socket of a connect that was given up; `close` thinks there is none."""
        if self._transport is not None:
            self._transport.close()

    def send(self, subject: str, reply: str, headers: bytes, data: bytes) -> None:
        """Publish without waiting, in one turn of the loop where the socket has room.

        nats-py wakes a task for every message that is published. Raises
        OutboundBufferLimitError when too much waits already, ConnectionClosedError.
        """
        if self.is_closed:
            raise nats_errors.ConnectionClosedError
        if headers:
            command = hpub_cmd(subject, reply, headers, data)
        else:
            command = pub_cmd(subject, reply, data)
        transport = self._ours
        if self.is_connected and not self._pending and transport and transport.has_room:
            transport.write(command)
            return
        if self._pending_data_size + len(command) > self._max_pending_size:
            raise nats_errors.OutboundBufferLimitError
        self._pending.append(command)
        self._pending_data_size += len(command)
        if self._flush_queue is not None and self._flush_queue.empty() and self.is_connected:
            self._flush_queue.put_nowait(asyncio.get_running_loop().create_future())

    async def listen(self, subject: str, queue: str, take: Callable[[Any], None]) -> int:
        """Subscribe; `take` gets each message in the reader itself. Returns the id of it.

        nats-py would queue each message and wake a task for it. Its `future=` argument hands
        the message over in the same turn of the loop (docs/decisions/0001).
        """
        future: Any = _Sink(take)
        sub = await self.subscribe(subject, queue, future=future)
        return sub._id  # pyright: ignore[reportPrivateUsage]

    async def stop_listening(self, sid: int) -> None:
        """Tell the server to send no more; messages already on the way still arrive."""
        await self._send_unsubscribe(sid)

    def forget(self, sid: int) -> None:
        self._remove_sub(sid)

    async def written(self) -> None:
        """Wait until all that was published or subscribed so far is in the socket's buffer.

        nats-py writes PING ahead of whatever is still queued, so a flush without this wait
        says nothing about the messages before it.
        """
        delay_s = 0.0
        while self.is_connected and self.pending_data_size:
            await asyncio.sleep(delay_s)
            delay_s = 0.001

    @property
    def is_deaf(self) -> bool:
        """Connected by its own account, but nobody reads the socket any more."""
        return self.is_connected and _is_done(self._reading_task)

    @property
    def is_stuck(self) -> bool:
        """Reconnecting by its own account, but nobody tries any more."""
        return self.is_reconnecting and _is_done(self._reconnection_task)

    async def _process_pong(self) -> None:
        if self._pongs and self._pongs[0].done():
            self._pongs.pop(0)
            self._pings_outstanding = 0
        else:
            await super()._process_pong()

    def _build_message(
        self,
        sid: int,
        subject: bytes,
        reply: bytes,
        data: bytes,
        headers: dict[str, str] | None,
    ) -> Any:
        try:
            return super()._build_message(sid, subject, reply, data, headers)
        except UnicodeDecodeError:
            _log.warning("bus: dropped a message whose subject or reply is not UTF-8")
            return None

    async def _process_headers(self, headers: bytes) -> dict[str, str] | None:
        if not headers:
            return None
        try:
            return await super()._process_headers(headers)
        except (ValueError, IndexError):
            _log.warning("bus: dropped headers that are not readable")
            return None


class _Sink:
    """What nats-py takes for the future of a one-shot subscription."""

    __slots__ = ("_take",)

    def __init__(self, take: Callable[[Any], None]) -> None:
        self._take = take

    def cancelled(self) -> bool:
        return False

    def set_result(self, msg: Any) -> None:
        try:
            self._take(msg)
        except Exception:  # noqa: BLE001 - outermost: an exception here would end the reader
            _log.exception("bus: taking a message failed")


def _is_done(task: asyncio.Task[Any] | None) -> bool:
    return task is not None and task.done()
