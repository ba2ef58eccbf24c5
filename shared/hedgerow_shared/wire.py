"""Internal messages <-> bytes: pure functions, version first, arrays as raw little-endian bytes.

Ids and vectors never travel as lists of numbers: that costs 300-700 times more than raw bytes.
Times are *remaining* milliseconds, never clock readings, so clocks may disagree.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgpack
import numpy as np

from hedgerow_shared.columns import pack_rows, raw, unpack_rows
from hedgerow_shared.errors import BadChunkError, HedgerowError, from_wire, to_wire
from hedgerow_shared.ragged import DTYPES, TASKS, Lane, OutputSpec, RaggedBatch, Row, check

VERSION = 1

MAX_TEXT = 1024
MAX_OUTPUTS = 32
"""Dimensions (or dtypes) one request may ask for at once."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """One piece of a request on its way to a worker. All its sequences want the same output."""

    id: str
    model: str
    lane: Lane
    ttl_ms: float
    batch: RaggedBatch
    fingerprint: str = ""
    trace: str = ""

    @property
    def output(self) -> OutputSpec:
        return self.batch.outputs[0]


@dataclass(frozen=True, slots=True)
class ChunkReply:
    """A worker's answer: one Row per sequence of the chunk, or one error for the whole."""

    id: str
    worker: str
    rows: list[Row] = field(default_factory=list)
    error: HedgerowError | None = None
    queue_ms: float = 0.0
    compute_ms: float = 0.0
    backlog_tokens: int = 0
    fingerprint: str = ""


def encode_chunk(chunk: Chunk) -> bytes:
    batch = chunk.batch
    spec = chunk.output
    body: dict[str, Any] = {
        "v": VERSION,
        "id": chunk.id,
        "model": chunk.model,
        "lane": int(chunk.lane),
        "ttl_ms": chunk.ttl_ms,
        "ids": raw(batch.input_ids, "<i4"),
        "cu": raw(batch.cu_seqlens, "<i4"),
        "out": {
            "task": spec.task,
            "dtypes": list(spec.dtypes),
            "dims": list(spec.dimensions),
            "norm": spec.normalize,
        },
    }
    for key, array in (
        ("pair", batch.pair_start),
        ("prompt", batch.prompt_len),
        ("spans", batch.spans),
    ):
        if array.size:
            body[key] = raw(array, "<i4")
    if chunk.fingerprint:
        body["fp"] = chunk.fingerprint
    if chunk.trace:
        body["trace"] = chunk.trace
    return _pack(body)


def decode_chunk(data: bytes) -> Chunk:
    """Read a chunk. Raises BadChunkError for anything that is not one, saying what is wrong."""
    body = _unpack(data)
    spec = _spec(body.get("out", {}))
    cu_seqlens = _ids(body, "cu")
    batch = RaggedBatch(
        _ids(body, "ids"),
        cu_seqlens,
        (spec,) * max(cu_seqlens.shape[0] - 1, 0),
        _ids(body, "pair", b""),
        _ids(body, "prompt", b""),
        _spans(body),
    )
    check(batch)
    return Chunk(
        _text(body, "id"),
        _text(body, "model"),
        _lane(body.get("lane", 0)),
        _number(body, "ttl_ms"),
        batch,
        _text(body, "fp", ""),
        _text(body, "trace", ""),
    )


def encode_reply(reply: ChunkReply) -> bytes:
    body: dict[str, Any] = {
        "v": VERSION,
        "id": reply.id,
        "worker": reply.worker,
        "queue_ms": reply.queue_ms,
        "compute_ms": reply.compute_ms,
        "backlog": reply.backlog_tokens,
        "fp": reply.fingerprint,
    }
    if reply.error is not None:
        body["error"] = to_wire(reply.error)
    else:
        body["n"] = len(reply.rows)
        body["out"], body["bad"] = pack_rows(reply.rows)
    return _pack(body)


def decode_reply(data: bytes) -> ChunkReply:
    """Read a worker's reply. Raises BadChunkError when it is not one."""
    body = _unpack(data)
    error = body.get("error")
    rows: list[Row] = []
    if error is None:
        rows = unpack_rows(body.get("n"), body.get("out"), body.get("bad"))
    return ChunkReply(
        _text(body, "id"),
        _text(body, "worker"),
        rows,
        None if error is None else from_wire(error),
        _number(body, "queue_ms", 0.0),
        _number(body, "compute_ms", 0.0),
        int(_number(body, "backlog", 0)),
        _text(body, "fp", ""),
    )


def encode_cancel(ids: list[str]) -> bytes:
    """The body of `hedgerow.worker.<id>.cancel`: chunks whose caller went away."""
    return _pack({"v": VERSION, "ids": ids})


def decode_cancel(data: bytes) -> list[str]:
    """Read a cancel message. Raises BadChunkError when it is not one."""
    ids = _unpack(data).get("ids")
    if not isinstance(ids, list) or not all(isinstance(i, str) for i in ids):
        raise BadChunkError("'ids' must be a list of chunk ids")
    return ids


def _pack(body: dict[str, Any]) -> bytes:
    packed = msgpack.packb(body)
    assert packed is not None, "packb returns bytes unless given a stream"
    return packed


def _unpack(data: bytes) -> dict[str, Any]:
    try:
        body = msgpack.unpackb(data)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise BadChunkError(f"not msgpack: {error or type(error).__name__}") from None
    if not isinstance(body, dict):
        raise BadChunkError(f"expected a map, found {type(body).__name__}")
    if body.get("v") != VERSION:
        raise BadChunkError(f"message version {body.get('v')!r}; this side speaks {VERSION}")
    return body


def _ids(body: Mapping[str, Any], name: str, default: bytes | None = None) -> Any:
    data = body.get(name, default)
    if not isinstance(data, bytes) or len(data) % 4:
        raise BadChunkError(f"{name!r} must be raw int32 bytes, found {_kind(data)}")
    return np.frombuffer(data, "<i4")


def _spans(body: Mapping[str, Any]) -> Any:
    flat = _ids(body, "spans", b"")
    if flat.size % 3:
        raise BadChunkError("'spans' must hold three int32 per span")
    return flat.reshape(-1, 3)


def _text(body: Mapping[str, Any], name: str, default: str | None = None) -> str:
    value = body.get(name, default)
    if not isinstance(value, str) or len(value) > MAX_TEXT:
        raise BadChunkError(f"{name!r} must be text up to {MAX_TEXT} long, found {_kind(value)}")
    return value


def _number(body: Mapping[str, Any], name: str, default: float | None = None) -> float:
    value = body.get(name, default)
    if type(value) not in (int, float) or not 0 <= value < math.inf:
        raise BadChunkError(f"{name!r} must be a number from 0 up, found {value!r:.40}")
    return value


def _lane(value: Any) -> Lane:
    if type(value) is not int or not 0 <= value < len(Lane):
        raise BadChunkError(f"'lane' must be 0 to {len(Lane) - 1}, found {value!r:.40}")
    return Lane(value)


def _spec(body: Any) -> OutputSpec:
    if not isinstance(body, dict):
        raise BadChunkError(f"'out' must be a map, found {_kind(body)}")
    task, norm = body.get("task", "embed"), body.get("norm")
    dtypes, dims = body.get("dtypes", ["float32"]), body.get("dims", [])
    if task not in TASKS:
        raise BadChunkError(f"unknown task in 'out': {task!r:.40}")
    if not _distinct(dtypes, 1) or any(d not in DTYPES for d in dtypes):
        raise BadChunkError(f"'dtypes' in 'out' must be of {', '.join(DTYPES)}: {dtypes!r:.80}")
    if not _distinct(dims, 0) or any(type(d) is not int or not 0 < d < 1 << 31 for d in dims):
        raise BadChunkError(f"bad 'dims' in 'out': {dims!r:.80}")
    if norm is not None and not isinstance(norm, bool):
        raise BadChunkError(f"bad 'norm' in 'out': {norm!r:.40}")
    return OutputSpec(task, tuple(dtypes), tuple(dims), norm)


def _distinct(values: Any, least: int) -> bool:
    """True for a short list of different values, at least `least` of them."""
    if not isinstance(values, list) or not least <= len(values) <= MAX_OUTPUTS:
        return False
    return all(v not in values[:i] for i, v in enumerate(values))


def _kind(value: Any) -> str:
    return "nothing" if value is None else type(value).__name__
