"""NATS request and reply: over a bare socket (the floor), and over nats-py (what people use)."""

from __future__ import annotations

import json
import secrets
import socket
from dataclasses import dataclass
from urllib.parse import urlparse


@dataclass(frozen=True, slots=True)
class Reply:
    """Header block (empty when there was none) and payload of one reply."""

    headers: bytes
    data: bytes

    @property
    def error(self) -> str:
        """Text of the error header, with its code; empty for a good reply."""
        for line in self.headers.split(b"\r\n"):
            if line.lower().startswith((b"nats-service-error", b"nats/1.0 503")):
                return line.decode("latin-1")
        return ""


class RawNats:
    """One blocking NATS connection that does request-reply on an inbox of its own.

    A benchmark client: no reconnect, no TLS, one request in flight.
    """

    def __init__(self, url: str, *, timeout_s: float = 600.0) -> None:
        address = urlparse(url)
        host, port = address.hostname or "127.0.0.1", address.port or 4222
        self._socket = socket.create_connection((host, port), timeout=timeout_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray()
        self._line()  # INFO
        options = {"verbose": False, "pedantic": False, "headers": True, "no_responders": True}
        options |= {"lang": "python", "version": "0", "protocol": 1, "name": "hedgerow-benchmark"}
        if address.username:
            options |= {"user": address.username, "pass": address.password or ""}
        self._inbox = f"_INBOX.{secrets.token_hex(11)}".encode()
        hello = b"CONNECT " + json.dumps(options).encode() + b"\r\n"
        self._socket.sendall(hello + b"SUB " + self._inbox + b" 1\r\nPING\r\n")
        while self._line() != b"PONG":
            pass

    def request(self, subject: str, data: bytes) -> Reply:
        """Publish and wait for the first reply. Raises OSError on a -ERR or a cut connection."""
        head = b"PUB %s %s %d\r\n" % (subject.encode(), self._inbox, len(data))
        self._socket.sendall(head + data + b"\r\n")
        while True:
            line = self._line()
            if line.startswith(b"PING"):
                self._socket.sendall(b"PONG\r\n")
            elif line.startswith(b"-ERR"):
                raise OSError(line.decode("latin-1"))
            elif line.startswith(b"MSG"):
                return Reply(b"", self._take(int(line.split()[-1])))
            elif line.startswith(b"HMSG"):
                header_bytes, total = (int(x) for x in line.split()[-2:])
                payload = self._take(total)
                return Reply(payload[:header_bytes], payload[header_bytes:])

    def _line(self) -> bytes:
        while (end := self._buffer.find(b"\r\n")) < 0:
            self._receive()
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 2]
        return line

    def _take(self, size: int) -> bytes:
        while len(self._buffer) < size + 2:
            self._receive()
        data = bytes(self._buffer[:size])
        del self._buffer[: size + 2]
        return data

    def _receive(self) -> None:
        data = self._socket.recv(262_144)
        if not data:
            raise ConnectionResetError("the NATS server closed the connection")
        self._buffer += data

    def close(self) -> None:
        self._socket.close()
