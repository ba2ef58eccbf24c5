"""nats-py's client with its sharp edges filed off; every use of its insides is in this file.

Written against 2.16; tests/shared/test_bus_traps.py fails when a later version moves them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from nats import errors as nats_errors
from nats.aio.client import Client
from nats.protocol.command import hpub_cmd, pub_cmd

from hedgerow_shared.bus.parser import Parser, Take
from hedgerow_shared.bus.transport import Transport

_CANCEL_S = 0.05
_log = logging.getLogger("hedgerow.bus")


class NatsClient(Client):
    """What is changed, and why:

    - the parser: see hedgerow_shared.bus.parser
    - a late PONG for a flush that was given up no longer ends the reader
    - publishing and receiving need no task per message
    """

    def __init__(self, transport: Transport) -> None:
        super().__init__()
        self._sinks: dict[int, Take] = {}
        self._ours = transport
        self._write_due = False
        # nats-py makes its own transport where this one is falsy.
        self._transport = transport
        parser: Any = Parser(self)
        self._ps = parser

    @property
    def sinks(self) -> Mapping[int, Take]:
        return self._sinks

    def hang_up(self) -> None:
        """Close the socket of a connect that was given up; `close` thinks there is none."""
        self._ours.close()

    def send(self, subject: str, reply: str, headers: bytes, data: bytes) -> None:
        """Publish without waiting; the bytes leave at the end of this turn of the loop.

        Raises OutboundBufferLimitError when too much waits already, ConnectionClosedError.
        """
        if self.is_closed:
            raise nats_errors.ConnectionClosedError
        if headers:
            command = hpub_cmd(subject, reply, headers, data)
        else:
            command = pub_cmd(subject, reply, data)
        if self._pending_data_size + len(command) > self._max_pending_size:
            raise nats_errors.OutboundBufferLimitError
        self._pending.append(command)
        self._pending_data_size += len(command)
        if not self._write_due and self.is_connected:
            self._write_due = True
            asyncio.get_running_loop().call_soon(self._write)

    def _write(self) -> None:
        """Everything that was published in one turn of the loop leaves in one write."""
        self._write_due = False
        if not self._pending or not self.is_connected:
            return
        if self._ours.has_room:
            pending, self._pending = self._pending, []
            self._pending_data_size = 0
            self._ours.write(b"".join(pending))
        elif self._flush_queue is not None and self._flush_queue.empty():
            # The flusher of nats-py waits for the socket, then writes what there is.
            self._flush_queue.put_nowait(asyncio.get_running_loop().create_future())

    def drop_unsent(self, reply_prefix: str) -> None:
        """Forget queued messages that want their answer under `reply_prefix`.

        After a reconnect they would make a worker compute for a caller who was told it failed.
        """
        mark = f" {reply_prefix}".encode()
        self._pending = [c for c in self._pending if mark not in c[: c.find(b"\r\n")]]
        self._pending_data_size = sum(map(len, self._pending))

    async def end_reconnecting(self) -> None:
        """Before `close` while disconnected, which cancels it only once: a try that has just ended
        swallows that (asyncio.wait_for), and would go on connecting for ever."""
        task = self._reconnection_task
        while task is not None and not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=_CANCEL_S)

    def drop_all_unsent(self) -> None:
        """Before `close` while disconnected, which would write it to the socket that is gone:
        either event loop raises over that, and the rest of the closing is left undone."""
        self._pending, self._pending_data_size = [], 0

    async def written(self) -> None:
        """Wait until all that was published or subscribed so far is in the socket's buffer.

        nats-py writes PING ahead of whatever is still queued, so a flush without this wait
        says nothing about the messages before it.
        """
        delay_s = 0.0
        while self.is_connected and self.pending_data_size:
            await asyncio.sleep(delay_s)
            delay_s = 0.001

    async def listen(self, subject: str, queue: str, take: Take) -> int:
        """Subscribe; the parser calls `take` with each message. Returns the id of it."""
        # subscribe() takes the next id before it first waits.
        sid = self._sid + 1
        self._sinks[sid] = take
        try:
            await self.subscribe(subject, queue)
        except BaseException:
            self._sinks.pop(sid, None)
            raise
        return sid

    async def stop_listening(self, sid: int) -> None:
        """Tell the server to send no more; messages already on the way still arrive."""
        await self._send_unsubscribe(sid)

    def forget(self, sid: int) -> None:
        self._sinks.pop(sid, None)
        self._remove_sub(sid)

    @property
    def is_deaf(self) -> bool:
        """Connected by its own account, but nobody reads the socket any more."""
        return self.is_connected and _is_done(self._reading_task)

    @property
    def is_stuck(self) -> bool:
        """Reconnecting by its own account, but nobody tries any more."""
        return self.is_reconnecting and _is_done(self._reconnection_task)

    async def on_ping(self) -> None:
        await self._process_ping()

    async def on_pong(self) -> None:
        if self._pongs and self._pongs[0].done():
            self._pongs.pop(0)
            self._pings_outstanding = 0
        else:
            await self._process_pong()

    async def on_err(self, text: str) -> None:
        await self._process_err(text)

    async def on_info(self, info: dict[str, Any]) -> None:
        await self._process_info(info)

    async def on_msg(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes
    ) -> None:
        try:
            await self._process_msg(sid, subject, reply, data, headers)
        except (ValueError, IndexError) as error:
            _log.warning("bus: dropped a message that is not readable: %s", error)


def _is_done(task: asyncio.Task[Any] | None) -> bool:
    return task is not None and task.done()
