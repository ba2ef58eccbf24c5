"""A stub of an embeddings server: answers what the real one would, at no cost."""

from __future__ import annotations

import base64
import json
import threading
import zlib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from benchmarks.target import Target

DIMENSION = 8


def vector_of(value: object) -> np.ndarray:
    """A unit vector that depends on one input (text or token ids) alone."""
    rng = np.random.default_rng(zlib.crc32(json.dumps(value).encode()))
    vector = rng.standard_normal(DIMENSION, np.float32)
    return vector / np.linalg.norm(vector)


class _Stub(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.seen.append((self.path, body))  # type: ignore[attr-defined]
        if self.server.refusals:  # type: ignore[attr-defined]
            self.server.refusals -= 1  # type: ignore[attr-defined]
            self._answer(429, {"error": {"message": "full"}}, {"retry-after-ms": "5"})
        elif self.path == "/v1/bulk":
            self._take_rows(body)
        elif self.path.endswith("rerank"):
            results = [{"index": i, "relevance_score": 0.5} for i in range(len(body["documents"]))]
            self._answer(200, {"results": results})
        else:
            inputs = body["input"]
            data = [{"index": i, "embedding": self._encoded(x)} for i, x in enumerate(inputs)]
            self._answer(200, {"data": data[::-1]})

    def do_GET(self) -> None:
        if self.path.startswith("/v1/jobs/"):
            self._answer(200, {"done": self.server.rows, "failed": 0})  # type: ignore[attr-defined]
            return
        self._answer(200, {"data": [{"id": "minilm", "dtype": "bfloat16"}]})

    def do_DELETE(self) -> None:
        self.server.cancelled.append(self.path)  # type: ignore[attr-defined]
        self._answer(200, {})

    def _take_rows(self, body: dict) -> None:
        if not self.server.jobs:  # type: ignore[attr-defined]
            self._answer(404, {"error": {"message": "no such route"}})
        elif "rows" not in body:
            self._answer(400, {"error": {"message": "rows is required"}})
        else:
            self.server.rows += len(body["rows"])  # type: ignore[attr-defined]
            self._answer(200, {"rows": len(body["rows"])})

    def _encoded(self, value: object) -> str:
        return base64.b64encode(vector_of(value).tobytes()).decode()

    def _answer(self, status: int, body: object, headers: dict[str, str] | None = None) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if self.server.chunked:  # type: ignore[attr-defined]
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            for part in (data[:7], data[7:]):
                self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
            self.wfile.write(b"0\r\n\r\n")
            return
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None: ...


class StubServer(ThreadingHTTPServer):
    """seen: (path, body) of every POST; refusals: so many are answered 429 first; jobs: there is
    a durable lane, which finishes rows at once."""

    daemon_threads = True
    chunked = False
    refusals = 0
    jobs = False
    rows = 0

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Stub)
        self.seen: list[tuple[str, dict]] = []
        self.cancelled: list[str] = []

    @property
    def target(self) -> Target:
        return Target(name="stub", port=self.server_address[1])


@pytest.fixture
def stub() -> Iterator[StubServer]:
    server = StubServer()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()
