"""Pulling from a consumer: ask for a few messages, take them, acknowledge each one.

A pull request dies with the server that held it and nobody says so: each one here has an end of
its own, and the caller asks again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hedgerow_shared.bus.client import Bus
from hedgerow_shared.bus.message import Message
from hedgerow_shared.bus.subscription import Subscription
from hedgerow_shared.errors import RetryableError

_LATE_S = 0.5
"""A request that the server has not ended this long after its expiry is gone."""


@dataclass(frozen=True, slots=True, eq=False)
class Delivery:
    """One message from a consumer, to be acknowledged.

    seq: its sequence in the stream
    attempt: 1 at its first delivery
    time_ns: when it was stored, by the server's clock
    pending: messages behind it for this consumer
    """

    bus: Bus
    subject: str
    data: bytes
    headers: Mapping[str, str]
    seq: int
    attempt: int
    time_ns: int
    pending: int
    ack_subject: str

    def ack(self) -> None:
        """It is done with: a work queue deletes it."""
        self._send(b"+ACK")

    def nak(self, delay_s: float = 0.0) -> None:
        """Give it back; it is delivered again after `delay_s`."""
        body = b"" if not delay_s else b" " + json.dumps({"delay": int(delay_s * 1e9)}).encode()
        self._send(b"-NAK" + body)

    def in_progress(self) -> None:
        """Ask for the whole time to acknowledge it once more."""
        self._send(b"+WPI")

    def _send(self, body: bytes) -> None:
        # What is lost here comes again by redelivery, and the result is kept only once.
        with contextlib.suppress(RetryableError):
            self.bus.publish_nowait(self.ack_subject, body)


class Pull:
    """Pulls from one consumer of one stream; one `fetch` at a time."""

    def __init__(
        self, bus: Bus, stream: str, consumer: str, take: Callable[[Delivery], None]
    ) -> None:
        self._bus, self._take = bus, take
        self._ask = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        self._inbox = bus.new_inbox()
        self._fetches = 0
        self._left = 0
        self._done: asyncio.Future[str] | None = None
        self._subscription: Subscription | None = None

    async def start(self) -> None:
        """Listen for deliveries. Raises what `Bus.subscribe` raises."""
        self._subscription = await self._bus.subscribe(f"{self._inbox}.*", self._arrived)
        await self._bus.barrier()

    async def stop(self) -> None:
        """Listen no more; returns once what was on the way was taken."""
        if self._subscription is not None:
            await self._subscription.drain()

    async def fetch(self, batch: int, *, expires_s: float = 0.0) -> str:
        """Ask for up to `batch` messages and hand each to `take`. Returns why it ended.

        "": all came; "404" or "408": no more within `expires_s` (0: at once); "503": nobody
        there; "409": the server ended it; "late": it never said.
        """
        self._fetches += 1
        self._left = batch
        self._done = asyncio.get_running_loop().create_future()
        body: dict[str, object] = {"batch": batch}
        if expires_s:
            body["expires"] = int(expires_s * 1e9)
        else:
            body["no_wait"] = True
        try:
            self._bus.publish_nowait(
                self._ask, json.dumps(body).encode(), reply=f"{self._inbox}.{self._fetches}"
            )
        except RetryableError:
            return "503"
        await asyncio.wait({self._done}, timeout=expires_s + _LATE_S if expires_s else 2.0)
        return self._done.result() if self._done.done() else "late"

    def _arrived(self, message: Message) -> None:
        delivery = parse(self._bus, message)
        if delivery is not None:
            self._left -= 1
            self._take(delivery)
            if self._left == 0:
                self._end("")
        elif message.subject == f"{self._inbox}.{self._fetches}":
            status = message.headers.get("Status", "")
            if status and status != "100":
                self._end(status)

    def _end(self, why: str) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_result(why)


def parse(bus: Bus, message: Message) -> Delivery | None:
    """A message as a consumer delivers it: its reply subject says all about it.

    $JS.ACK.<stream>.<consumer>.<attempt>.<seq>.<consumer seq>.<time>.<pending>, or the same
    behind <domain>.<account hash> and with a random token at its end.
    """
    tokens = message.reply.split(".")
    if len(tokens) < 9 or tokens[:2] != ["$JS", "ACK"]:
        return None
    at = 4 if len(tokens) == 9 else 6
    try:
        attempt, seq, _, time_ns, pending = map(int, tokens[at : at + 5])
    except ValueError:
        return None
    return Delivery(
        bus,
        message.subject,
        message.data,
        message.headers,
        seq,
        attempt,
        time_ns,
        pending,
        message.reply,
    )
