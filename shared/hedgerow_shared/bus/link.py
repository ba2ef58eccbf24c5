"""The life of one connection: up, down, up again, refused, closed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from nats import errors as nats_errors

from hedgerow_shared.bus import dial
from hedgerow_shared.bus.nats_client import NatsClient
from hedgerow_shared.bus.options import BusOptions, without_password
from hedgerow_shared.bus.transport import Transport
from hedgerow_shared.bus.watchdog import watch
from hedgerow_shared.errors import ForbiddenError, RetryableError, WorkerLostError

_BARRIER_S = 20
"""Longer than the ping budget: the connection is declared dead before a barrier gives up."""

_log = logging.getLogger("hedgerow.bus")


class Link:
    """Owns nats-py's client and turns its callbacks into three events.

    on_down: the connection is gone (it will be tried again, unless we are closing)
    on_refused: a publish to this subject (in lower case) was not allowed
    on_closed: it ended for good, and not by `close`
    """

    def __init__(
        self,
        options: BusOptions,
        *,
        on_down: Callable[[], None],
        on_refused: Callable[[str], None],
        on_closed: Callable[[], None] | None,
    ) -> None:
        self.nc = NatsClient(Transport(must_encrypt=options.must_encrypt))
        self._options = options
        self._on_down = on_down
        self._on_refused = on_refused
        self._on_closed = on_closed
        self._closing = False
        self._down: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._refused: dict[str, str] = {}
        self._last_note = ""
        self._watchdog: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Connect within the deadline of the options, or raise StartupError."""
        events = dial.Events(self._error, self._lost_it, self._up, self._end)
        await dial.connect(self.nc, self._options, events)
        self._watchdog = asyncio.create_task(watch(self.nc))

    @property
    def url(self) -> str:
        current = self.nc.connected_url
        return without_password(current.geturl() if current else self._options.url)

    @property
    def is_connected(self) -> bool:
        return self.nc.is_connected and not self.nc.is_deaf

    def check_up(self) -> None:
        if not self.is_connected:
            raise WorkerLostError("the message bus is not connected at the moment")

    def lost(self) -> WorkerLostError:
        return WorkerLostError("the connection to the message bus went down")

    async def barrier(self) -> None:
        """See `Bus.barrier`."""
        self.check_up()
        down = self._down
        await self.nc.written()
        flush = asyncio.ensure_future(self.nc.flush(timeout=_BARRIER_S))
        try:
            await asyncio.wait({flush, down}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            flush.cancel()
            (outcome,) = await asyncio.gather(flush, return_exceptions=True)
        # nats-py's flush returns without an answer when nobody reads.
        if outcome is not None or self.nc.is_deaf:
            raise self.lost()
        if self._refused:
            subject, text = self._refused.popitem()
            raise ForbiddenError(f"this user may not subscribe to {subject} ({text})")

    async def close(self, patience_s: float) -> None:
        """Close, after what was published reached the server."""
        self._closing = True
        if self._watchdog is not None:
            self._watchdog.cancel()
        try:
            await asyncio.wait_for(self.barrier(), patience_s)
        except (RetryableError, ForbiddenError, TimeoutError, nats_errors.Error):
            _log.warning("bus: closing %s without its last acknowledgement", self.url)
        if not self.nc.is_connected:
            await self.nc.end_reconnecting()
            self.nc.drop_all_unsent()
        await self.nc.close()

    async def _error(self, error: Exception) -> None:
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
            self._on_refused(subject)

    async def _lost_it(self) -> None:
        down, self._down = self._down, asyncio.get_running_loop().create_future()
        down.set_result(None)
        self._on_down()
        if not self._closing:
            _log.warning("bus: lost %s", self.url)

    async def _up(self) -> None:
        self._last_note = ""
        _log.info("bus: back on %s", self.url)

    async def _end(self) -> None:
        if self._closing:
            return
        self._closing = True
        _log.error("bus: %s: the connection ended for good: %s", self.url, self.nc.last_error)
        if self._watchdog is not None:
            self._watchdog.cancel()
        if self._on_closed is not None:
            self._on_closed()
