"""A server under test: where it listens, how it is asked, how its answers are read."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.clients.http import HttpClient, Response, post
from benchmarks.harness import Vectors

Input = str | npt.NDArray[np.int32]

TTL_MS = 600_000
"""Benchmarks ask for patience: a request of 100 x 4,096 tokens takes minutes on two cores."""


class RefusedError(Exception):
    """The server answered something other than 200. The text holds status and body."""

    def __init__(self, response: Response) -> None:
        super().__init__(
            f"HTTP {response.status}: {response.body[:300].decode('utf-8', 'replace')}"
        )
        self.response = response


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """An OpenAI-shaped embeddings server.

    name: what the rows call it
    takes_ids: inputs may be token ids; else suites send texts of the same length
    nats_url: set where the same server also answers on NATS
    models: what this server calls our model aliases
    """

    name: str
    host: str = "127.0.0.1"
    port: int = 8080
    path: str = "/v1/embeddings"
    takes_ids: bool = True
    nats_url: str = ""
    models: tuple[tuple[str, str], ...] = ()
    encoding: str = "base64"

    def called(self, model: str) -> str:
        return dict(self.models).get(model, model)

    def body(self, model: str, inputs: Sequence[Input]) -> bytes:
        """JSON body of an embeddings request for texts or token ids."""
        plain = [i if isinstance(i, str) else i.tolist() for i in inputs]
        asked = {"model": self.called(model), "input": plain, "encoding_format": self.encoding}
        return json.dumps(asked, separators=(",", ":")).encode()

    def request(self, model: str, inputs: Sequence[Input]) -> bytes:
        """The whole HTTP request, ready to be sent as often as wanted."""
        return self.post(self.path, self.body(model, inputs))

    def post(self, path: str, body: bytes) -> bytes:
        where = f"{self.host}:{self.port}"
        return post(where, path, body, hedgerow_ttl_ms=str(TTL_MS))

    def client(self) -> HttpClient:
        return HttpClient(self.host, self.port)

    def embed(self, model: str, inputs: Sequence[Input]) -> Vectors:
        """One request on a connection of its own, its vectors checked for shape."""
        with self.client() as client:
            return vectors(good(client.exchange(self.request(model, inputs))))

    def renamed(self, name: str) -> Target:
        return replace(self, name=name)


def good(response: Response) -> bytes:
    """Body of a 200. Raises RefusedError with status and body otherwise."""
    if response.status != 200:
        raise RefusedError(response)
    return response.body


def vectors(body: bytes) -> Vectors:
    """float32 [n, dim] of an OpenAI embeddings response, base64 or float lists, by index."""
    rows: list[dict[str, Any]] = sorted(json.loads(body)["data"], key=lambda row: row["index"])
    return np.stack([_vector(row["embedding"]) for row in rows])


def _vector(value: Any) -> npt.NDArray[np.float32]:
    if isinstance(value, str):
        return np.frombuffer(base64.b64decode(value), np.float32)
    return np.asarray(value, np.float32)
