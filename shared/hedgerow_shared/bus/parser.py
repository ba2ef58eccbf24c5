"""Bytes from the server -> messages, for nats-py's client.

Whoever may publish to us chooses the subject, the reply and the headers, and nats-py's own
parser ends the connection, or only its reader, over some of them: white space such as \\x0b in
a reply, bytes that are not UTF-8, a header block without its first line. This one drops such a
message and reads on. It also hands our messages over without a coroutine each.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple, Protocol

from nats import errors as nats_errors

from hedgerow_shared.bus.message import Message, decode_headers

MAX_LINE_BYTES = 1024 * 1024
"""An INFO line lists every server of a cluster; everything else is far shorter."""

Take = Callable[[Message], None]

_log = logging.getLogger("hedgerow.bus")


class Client(Protocol):
    """What the parser reports to."""

    @property
    def sinks(self) -> Mapping[int, Take]:
        """Who takes the messages of a subscription, by its id."""
        ...

    def on_ping(self) -> Awaitable[None]: ...

    def on_pong(self) -> Awaitable[None]: ...

    def on_err(self, text: str) -> Awaitable[None]: ...

    def on_info(self, info: dict[str, Any]) -> Awaitable[None]: ...

    def on_msg(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes
    ) -> Awaitable[None]:
        """A message for a subscription that is not in `sinks`."""
        ...


class _Head(NamedTuple):
    subject: bytes
    sid: int
    reply: bytes
    header_bytes: int
    total_bytes: int


class Parser:
    """Takes the stream in pieces of any size."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.reset()

    def reset(self) -> None:
        """Forget what was begun: a new connection starts a new stream."""
        self._buffer = bytearray()
        self._head: _Head | None = None

    async def parse(self, data: bytes) -> None:
        """Feed bytes. Raises nats.errors.ProtocolError when the stream makes no sense."""
        # A reset meanwhile replaces the buffer; what is left of this one is then read in vain.
        buffer = self._buffer
        buffer += data
        at = 0
        while True:
            if self._head is None:
                end = buffer.find(b"\r\n", at)
                if end < 0:
                    if len(buffer) - at > MAX_LINE_BYTES:
                        raise nats_errors.ProtocolError("nats: a line without an end")
                    break
                line = bytes(buffer[at:end])
                at = end + 2
                if line.startswith((b"MSG ", b"HMSG ")):
                    self._head = _parse_head(line)
                else:
                    await self._control(line)
            else:
                end = at + self._head.total_bytes
                if len(buffer) < end + 2:
                    break
                head, self._head = self._head, None
                with memoryview(buffer) as view:
                    block = bytes(view[at : at + head.header_bytes]) if head.header_bytes else b""
                    body = bytes(view[at + head.header_bytes : end])
                at = end + 2
                take = self._client.sinks.get(head.sid)
                if take is not None:
                    _hand_over(take, head, block, body)
                else:
                    await self._client.on_msg(head.sid, head.subject, head.reply, body, block)
        del buffer[:at]

    async def _control(self, line: bytes) -> None:
        client = self._client
        op, _, rest = line.partition(b" ")
        op = op.upper()
        if op == b"PING":
            await client.on_ping()
        elif op == b"PONG":
            await client.on_pong()
        elif op == b"-ERR":
            await client.on_err(rest.decode("utf-8", "replace").strip().lower())
        elif op == b"INFO":
            try:
                info = json.loads(rest)
            except ValueError:
                raise nats_errors.ProtocolError("nats: INFO is not JSON") from None
            await client.on_info(info)
        elif op != b"+OK":
            raise nats_errors.ProtocolError(f"nats: unknown operation {op[:16]!r}")


def _parse_head(line: bytes) -> _Head:
    """MSG <subject> <sid> [reply] <bytes>, HMSG <subject> <sid> [reply] <header> <total>."""
    op, *parts = line.split(b" ")
    numbers = 2 if op == b"HMSG" else 1
    try:
        subject, sid, *reply = parts[:-numbers]
        total = int(parts[-1])
        header = int(parts[-2]) if numbers == 2 else 0
        if len(reply) > 1 or not 0 <= header <= total:
            raise ValueError
        return _Head(subject, int(sid), reply[0] if reply else b"", header, total)
    except (ValueError, IndexError):
        raise nats_errors.ProtocolError(f"nats: unreadable {line[:80]!r}") from None


def _hand_over(take: Take, head: _Head, block: bytes, body: bytes) -> None:
    try:
        subject, reply = head.subject.decode(), head.reply.decode()
        if not subject.isprintable() or not reply.isprintable():
            raise ValueError("control characters in a subject")
        message = (
            Message(subject, body, reply, decode_headers(block))
            if block
            else Message(subject, body, reply)
        )
    except ValueError as error:  # UnicodeDecodeError is one
        _log.warning("bus: dropped a message that is not readable: %s", error)
        return
    try:
        take(message)
    except Exception:  # noqa: BLE001 - outermost: an exception here would end the reader
        _log.exception("bus: taking a message failed")
