"""Keep-alive HTTP/1.1 over a bare socket: one blocking connection, requests built beforehand."""

from __future__ import annotations

import socket
from dataclasses import dataclass

_END = b"\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Response:
    """Status, raw header block (lower case) and body of one answer."""

    status: int
    headers: bytes
    body: bytes

    def header(self, name: str) -> str:
        """Value of a header, or an empty string."""
        _, found, rest = self.headers.partition(b"\r\n" + name.lower().encode() + b":")
        return rest.split(b"\r\n", 1)[0].strip().decode("latin-1") if found else ""


def post(host: str, path: str, body: bytes, **headers: str) -> bytes:
    """The bytes of one POST with a JSON body; `ttl_ms="5"` becomes the header `ttl-ms: 5`."""
    lines = [f"POST {path} HTTP/1.1", f"host: {host}", "content-type: application/json"]
    lines += [f"content-length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode("latin-1") + _END + body


def get(host: str, path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nhost: {host}\r\n\r\n".encode("latin-1")


def delete(host: str, path: str) -> bytes:
    return get(host, path).replace(b"GET", b"DELETE", 1)


class ResponseReader:
    """Cuts answers out of a byte stream: feed bytes, get a Response once one is whole."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._need = -1

    def feed(self, data: bytes) -> Response | None:
        """Add received bytes. Returns the answer when its last byte came, else None.

        One request is in flight at a time, so nothing follows an answer in the buffer.
        """
        self._buffer += data
        if self._need < 0 and not self._measure():
            return None
        if self._need == 0:
            return self._chunked()
        return self._take(self._need) if len(self._buffer) >= self._need else None

    def _measure(self) -> bool:
        end = self._buffer.find(_END)
        if end < 0:
            return False
        head = bytes(self._buffer[:end]).lower()
        _, found, rest = head.partition(b"\r\ncontent-length:")
        self._need = end + 4 + int(rest.split(b"\r\n", 1)[0]) if found else 0
        return True

    def _take(self, size: int) -> Response:
        head, _, body = bytes(self._buffer[:size]).partition(_END)
        self._reset()
        return Response(int(head[9:12]), head.lower() + b"\r\n", body)

    def _chunked(self) -> Response | None:
        if not self._buffer.endswith(b"0\r\n\r\n"):
            return None
        head, _, rest = bytes(self._buffer).partition(_END)
        body = bytearray()
        while rest:
            size_text, _, rest = rest.partition(b"\r\n")
            size = int(size_text.split(b";", 1)[0], 16)
            body += rest[:size]
            rest = rest[size + 2 :] if size else b""
        self._reset()
        return Response(int(head[9:12]), head.lower() + b"\r\n", bytes(body))

    def _reset(self) -> None:
        self._buffer.clear()
        self._need = -1


class HttpClient:
    """One blocking connection. Opened at the first exchange, opened again after a failure."""

    def __init__(self, host: str, port: int, *, timeout_s: float = 600.0) -> None:
        self._address = (host, port)
        self._timeout_s = timeout_s
        self._socket: socket.socket | None = None
        self._reader = ResponseReader()

    def exchange(self, request: bytes) -> Response:
        """Send a whole request and wait for its whole answer. Raises OSError when cut off."""
        if self._socket is None:
            self._socket = socket.create_connection(self._address, timeout=self._timeout_s)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._reader = ResponseReader()
        try:
            return self._exchange(self._socket, request)
        except OSError:
            self.close()
            raise

    def _exchange(self, connection: socket.socket, request: bytes) -> Response:
        connection.sendall(request)
        while True:
            data = connection.recv(262_144)
            if not data:
                raise ConnectionResetError("the server closed the connection before answering")
            response = self._reader.feed(data)
            if response is not None:
                return response

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def __enter__(self) -> HttpClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
