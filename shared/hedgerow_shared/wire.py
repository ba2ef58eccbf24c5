"""Internal messages <-> bytes: pure functions, version first, arrays as raw little-endian bytes.

Ids and vectors never travel as lists of numbers: that costs 300-700 times more than raw bytes.
Times are *remaining* milliseconds, never clock readings, so clocks may disagree.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import msgpack
import msgspec
import numpy as np

from hedgerow_shared.columns import pack_rows, raw, unpack_rows
from hedgerow_shared.errors import BadChunkError, HedgerowError, from_wire, to_wire
from hedgerow_shared.ragged import DType, Lane, OutputSpec, RaggedBatch, Row, Task, TokenIds, check

VERSION = 1

MAX_TEXT = 1024
MAX_OUTPUTS = 32
"""Dimensions (or dtypes) one request may ask for at once."""

_Text = Annotated[str, msgspec.Meta(max_length=MAX_TEXT)]
_Dimension = Annotated[int, msgspec.Meta(ge=1, lt=1 << 31)]


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
    return _encode(body)


class _Out(msgspec.Struct, frozen=True):
    task: Task = "embed"
    dtypes: Annotated[tuple[DType, ...], msgspec.Meta(min_length=1, max_length=MAX_OUTPUTS)] = (
        "float32",
    )
    dims: Annotated[tuple[_Dimension, ...], msgspec.Meta(max_length=MAX_OUTPUTS)] = ()
    norm: bool | None = None


class _ChunkBody(msgspec.Struct, gc=False):
    """A chunk's map, read and checked in one call.

    A worker reads a chunk right after a forward pass has emptied the caches, where every Python
    function and numpy call costs ten times its usual price: 176 us that way, 70 us this way.
    """

    v: Literal[1]
    id: _Text
    model: _Text
    ttl_ms: Annotated[float, msgspec.Meta(ge=0, le=1e15)]
    ids: bytes
    cu: bytes
    lane: Lane = Lane.QUERY
    out: _Out = _Out()
    pair: bytes = b""
    prompt: bytes = b""
    spans: bytes = b""
    fp: _Text = ""
    trace: _Text = ""


_encode = msgspec.msgpack.Encoder().encode
_chunk_decoder = msgspec.msgpack.Decoder(_ChunkBody)
_int32 = np.dtype("<i4")
_no_ids: TokenIds = np.zeros(0, np.int32)
_no_spans: TokenIds = np.zeros((0, 3), np.int32)
_specs: dict[_Out, OutputSpec] = {}
_MAX_SPECS = 1024


def decode_chunk(data: bytes) -> Chunk:
    """Read a chunk. Raises BadChunkError for anything that is not one, saying what is wrong."""
    try:
        body = _chunk_decoder.decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        _unpack(data)  # names the version, or what is not msgpack, where that is the reason
        raise BadChunkError(f"chunk not readable: {error!s:.200}") from None
    cu_seqlens = _ids(body.cu, "cu")
    batch = RaggedBatch(
        _ids(body.ids, "ids"),
        cu_seqlens,
        (_spec(body.out),) * max(cu_seqlens.shape[0] - 1, 0),
        _ids(body.pair, "pair") if body.pair else _no_ids,
        _ids(body.prompt, "prompt") if body.prompt else _no_ids,
        _spans(body.spans) if body.spans else _no_spans,
    )
    check(batch)
    return Chunk(body.id, body.model, body.lane, body.ttl_ms, batch, body.fp, body.trace)


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
    return _encode(body)


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
    return _encode({"v": VERSION, "ids": ids})


def decode_cancel(data: bytes) -> list[str]:
    """Read a cancel message. Raises BadChunkError when it is not one."""
    ids = _unpack(data).get("ids")
    if not isinstance(ids, list) or not all(isinstance(i, str) for i in ids):
        raise BadChunkError("'ids' must be a list of chunk ids")
    return ids


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


def _ids(data: bytes, name: str) -> TokenIds:
    if len(data) % 4:
        raise BadChunkError(f"{name!r} must be raw int32, found {len(data)} bytes")
    return np.frombuffer(data, _int32)


def _spans(data: bytes) -> TokenIds:
    flat = _ids(data, "spans")
    if flat.size % 3:
        raise BadChunkError("'spans' must hold three int32 per span")
    return flat.reshape(-1, 3)


def _spec(out: _Out) -> OutputSpec:
    """One object for all chunks that want the same, so that batches compare specs by identity."""
    spec = _specs.get(out)
    if spec is None:
        for name, values in (("dtypes", out.dtypes), ("dims", out.dims)):
            if len(set(values)) != len(values):
                raise BadChunkError(f"{name!r} in 'out' names one twice: {values!r:.80}")
        if len(_specs) >= _MAX_SPECS:
            _specs.clear()
        spec = _specs[out] = OutputSpec(out.task, out.dtypes, out.dims, out.norm)
    return spec


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


def _kind(value: Any) -> str:
    return "nothing" if value is None else type(value).__name__
