"""JetStream over the bus: what must not be lost. Plain requests to the server's $JS.API.

nats-py's own JetStream context would bring back what `Bus` avoids: its request() leaves callers
waiting when the connection dies, and its pull subscriptions fall silent after a restart.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hedgerow_shared.bus.client import Bus
from hedgerow_shared.bus.message import NO_HEADERS, Message, decode_headers
from hedgerow_shared.errors import (
    DeadlineError,
    ForbiddenError,
    HedgerowError,
    NoWorkerError,
    StorageError,
    WorkerLostError,
)

NO_STREAM, NO_MESSAGE = 10059, 10037
NAME_IN_USE, CONSUMER_EXISTS = 10058, 10148
NO_ROOM = 10047
WRONG_SEQUENCE = (10071, 10164)

_READ_S = 5.0


class JetStreamError(HedgerowError):
    """The server refused a call. err_code: its number for the reason."""

    def __init__(self, message: str, err_code: int = 0, status: int = 0) -> None:
        super().__init__(message)
        self.err_code, self.server_status = err_code, status


class NoStreamError(StorageError):
    """There is no such stream."""


class SequenceConflictError(JetStreamError):
    """Somebody stored something else under this subject first, or stored this already."""


@dataclass(frozen=True, slots=True)
class PubAck:
    """Where a message is stored. duplicate: it was there before, by its message id."""

    stream: str
    seq: int
    duplicate: bool


@dataclass(frozen=True, slots=True)
class Stored:
    """A message as a stream keeps it. time: RFC 3339, by the server's clock."""

    subject: str
    seq: int
    time: str
    data: bytes
    headers: Mapping[str, str] = field(default_factory=lambda: NO_HEADERS)


@dataclass(frozen=True, slots=True)
class Page:
    """Messages in order of their sequence, and how many of the same subjects lie behind them."""

    messages: list[Stored]
    pending: int


class JetStream:
    """Calls to the JetStream of one bus. timeout_s: of one call, unless it names its own.

    Whatever keeps the server from storing or answering (no JetStream, no stream, full, down, no
    leader, too slow) is a StorageError; what it refuses for a reason is a JetStreamError.
    """

    def __init__(self, bus: Bus, *, timeout_s: float = 1.8) -> None:
        self.bus, self._timeout_s = bus, timeout_s

    async def publish(
        self,
        subject: str,
        data: bytes,
        *,
        msg_id: str = "",
        expect_last: int | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> PubAck:
        """Store one message; returns once the server says that it is stored.

        msg_id: a second message of this id within the stream's window is not stored again
        expect_last: sequence of the last message of this subject, 0 = there is none yet;
            SequenceConflictError when it is another
        """
        all_headers = dict(headers or {})
        if msg_id:
            all_headers["Nats-Msg-Id"] = msg_id
        if expect_last is not None:
            all_headers["Nats-Expected-Last-Subject-Sequence"] = str(expect_last)
        reply = await self._ask(subject, data, all_headers, timeout_s)
        found = _object(reply.data, subject)
        return PubAck(str(found["stream"]), int(found["seq"]), bool(found.get("duplicate")))

    async def call(self, name: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """One $JS.API call. Raises JetStreamError with the server's number for the reason."""
        data = b"" if body is None else json.dumps(body).encode()
        reply = await self._ask(f"$JS.API.{name}", data, None, None)
        return _object(reply.data, name)

    async def stream_info(self, stream: str, *, subjects: str = "") -> dict[str, Any] | None:
        """A stream's `config` and `state`; None when there is none.

        subjects: a filter; the state then counts messages by subject
        """
        body = {"subjects_filter": subjects} if subjects else None
        try:
            return await self.call(f"STREAM.INFO.{stream}", body)
        except NoStreamError:
            return None

    async def purge(self, stream: str, *, subject: str, before_seq: int = 0) -> int:
        """Delete a stream's messages of a subject (all, or those before a sequence)."""
        body: dict[str, Any] = {"filter": subject}
        if before_seq:
            body["seq"] = before_seq
        return int((await self.call(f"STREAM.PURGE.{stream}", body)).get("purged", 0))

    async def last(self, stream: str, subject: str) -> Stored | None:
        """The last message of a subject, asked of the stream's leader."""
        return await self._message(stream, {"last_by_subj": subject})

    async def first(self, stream: str, subject: str) -> Stored | None:
        """The oldest message of a subject that the stream still has; `*` and `>` may be in it."""
        return await self._message(stream, {"seq": 1, "next_by_subj": subject})

    async def _message(self, stream: str, which: Mapping[str, Any]) -> Stored | None:
        try:
            found = await self.call(f"STREAM.MSG.GET.{stream}", which)
        except JetStreamError as error:
            if error.err_code == NO_MESSAGE:
                return None
            raise
        message = found["message"]
        block = base64.b64decode(message.get("hdrs") or "")
        return Stored(
            message["subject"],
            int(message["seq"]),
            message["time"],
            base64.b64decode(message.get("data") or ""),
            decode_headers(block) if block else NO_HEADERS,
        )

    async def last_direct(self, stream: str, subject: str) -> Stored | None:
        """The same from any replica, which may lag: fit where a conflict is noticed anyway."""
        reply = await self._ask(f"$JS.API.DIRECT.GET.{stream}.{subject}", b"", None, None)
        return None if _is_status(reply) else _stored(reply)

    async def read(
        self, stream: str, subject: str, *, from_seq: int, max_messages: int, max_bytes: int
    ) -> Page:
        """Messages of a subject from a sequence on; a page holds at least one if there is one."""
        body = {
            "seq": max(from_seq, 1),
            "next_by_subj": subject,
            "batch": max_messages,
            "max_bytes": max_bytes,
        }
        try:
            replies = await self.bus.request_many(
                f"$JS.API.DIRECT.GET.{stream}",
                json.dumps(body).encode(),
                timeout_s=_READ_S,
                is_last=_is_status,
            )
        except WorkerLostError as error:
            raise StorageError(error.message) from None
        if not replies or not _is_status(replies[-1]):
            raise StorageError(f"stream {stream} does not answer")
        *messages, end = replies
        if end.headers["Status"] not in ("204", "404"):
            raise StorageError(f"stream {stream} answered {end.headers['Status']}")
        pending = int(end.headers.get("Nats-Num-Pending", 0))
        return Page([_stored(message) for message in messages], pending)

    async def _ask(
        self,
        subject: str,
        data: bytes,
        headers: Mapping[str, str] | None,
        timeout_s: float | None,
    ) -> Message:
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        try:
            return await self.bus.request(subject, data, timeout_s=timeout_s, headers=headers)
        except NoWorkerError:
            raise StorageError(
                "nobody stores this: the NATS server runs without JetStream, or its stream is gone"
            ) from None
        except DeadlineError:
            raise StorageError(
                f"the NATS server did not confirm this within {timeout_s:g} s: its disk "
                "is slow or was full (free some and restart that server), or its cluster has no "
                "leader; its log says which"
            ) from None
        except ForbiddenError as error:
            raise StorageError(f"{error.message}, which storing needs") from None
        except WorkerLostError as error:
            raise StorageError(error.message) from None


def _object(data: bytes, name: str) -> dict[str, Any]:
    """A reply of the server; raises what it says went wrong."""
    try:
        found = json.loads(data)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise StorageError(f"{name}: the answer is not one of JetStream's")
    error = found.get("error")
    if error is None:
        return found
    code, status = int(error.get("err_code", 0)), int(error.get("code", 0))
    text = f"{name}: {error.get('description', 'refused')}"
    if code in WRONG_SEQUENCE:
        raise SequenceConflictError(text, code, status)
    if code == NO_STREAM:
        raise NoStreamError(text)
    if status == 503:
        raise StorageError(text)
    raise JetStreamError(text, code, status)


def _is_status(message: Message) -> bool:
    return not message.data and "Status" in message.headers


def _stored(message: Message) -> Stored:
    headers = message.headers
    return Stored(
        headers.get("Nats-Subject", ""),
        int(headers.get("Nats-Sequence", 0)),
        headers.get("Nats-Time-Stamp", ""),
        message.data,
        headers,
    )
