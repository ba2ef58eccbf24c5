"""Internal messages <-> bytes: pure functions, version first, arrays as raw little-endian bytes.

Ids and vectors never travel as lists of numbers: that costs 300-700 times more than raw bytes.
Times are *remaining* milliseconds, never clock readings, so clocks may disagree.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgpack
import numpy as np

from hedgerow_shared.errors import BadChunkError, HedgerowError, from_wire, to_wire
from hedgerow_shared.ragged import DTYPES, TASKS, Array, Lane, OutputSpec, RaggedBatch, Row, check

VERSION = 1


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
        "ids": _raw(batch.input_ids, "<i4"),
        "cu": _raw(batch.cu_seqlens, "<i4"),
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
            body[key] = _raw(array, "<i4")
    if chunk.fingerprint:
        body["fp"] = chunk.fingerprint
    if chunk.trace:
        body["trace"] = chunk.trace
    return _pack(body)


def decode_chunk(data: bytes) -> Chunk:
    """Read a chunk. Raises BadChunkError for anything that is not one, saying what is wrong."""
    body = _unpack(data)
    try:
        spec = _spec(body.get("out", {}))
        cu_seqlens = _ids(body["cu"], "cu")
        batch = RaggedBatch(
            _ids(body["ids"], "ids"),
            cu_seqlens,
            (spec,) * max(cu_seqlens.shape[0] - 1, 0),
            _ids(body.get("pair", b""), "pair"),
            _ids(body.get("prompt", b""), "prompt"),
            _spans(body.get("spans", b"")),
        )
        chunk = Chunk(
            _text(body["id"], "id"),
            _text(body["model"], "model"),
            Lane(body.get("lane", 0)),
            float(body["ttl_ms"]),
            batch,
            _text(body.get("fp", ""), "fp"),
            _text(body.get("trace", ""), "trace"),
        )
    except KeyError as error:
        raise BadChunkError(f"chunk without {error.args[0]!r}") from None
    except (TypeError, ValueError) as error:
        raise BadChunkError(f"chunk not readable: {error}") from None
    check(batch)
    return chunk


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
        body["out"], body["bad"] = _pack_rows(reply.rows)
    return _pack(body)


def decode_reply(data: bytes) -> ChunkReply:
    """Read a worker's reply. Raises BadChunkError when it is not one."""
    body = _unpack(data)
    try:
        error = body.get("error")
        rows: list[Row] = [] if error is not None else _unpack_rows(body)
        return ChunkReply(
            str(body["id"]),
            str(body["worker"]),
            rows,
            None if error is None else from_wire(error),
            float(body.get("queue_ms", 0.0)),
            float(body.get("compute_ms", 0.0)),
            int(body.get("backlog", 0)),
            str(body.get("fp", "")),
        )
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise BadChunkError(f"reply not readable: {error}") from None


def encode_cancel(ids: list[str]) -> bytes:
    """The body of `hedgerow.worker.<id>.cancel`: chunks whose caller went away."""
    return _pack({"v": VERSION, "ids": ids})


def decode_cancel(data: bytes) -> list[str]:
    """Read a cancel message. Raises BadChunkError when it is not one."""
    ids = _unpack(data).get("ids")
    if not isinstance(ids, list) or not all(isinstance(i, str) for i in ids):
        raise BadChunkError("'ids' must be a list of chunk ids")
    return ids


def _pack_rows(rows: list[Row]) -> tuple[list[dict[str, Any]], list[list[Any]]]:
    """Good rows, column by column: equal shapes are stacked, others carry their lengths."""
    good = [row for row in rows if not isinstance(row, HedgerowError)]
    bad = [[i, to_wire(row)] for i, row in enumerate(rows) if isinstance(row, HedgerowError)]
    columns = [_pack_column(column) for column in zip(*good, strict=True)]
    return columns, bad


def _pack_column(arrays: tuple[Array, ...]) -> dict[str, Any]:
    first = arrays[0]
    dtype = first.dtype.newbyteorder("<").str
    if all(a.shape == first.shape for a in arrays):
        data = first if len(arrays) == 1 else np.stack(arrays)
        return {"t": dtype, "s": list(first.shape), "d": _raw(data, dtype)}
    lens = np.array([a.shape[0] for a in arrays], np.int32)
    data = np.concatenate(arrays)
    return {"t": dtype, "s": list(first.shape[1:]), "l": _raw(lens, "<i4"), "d": _raw(data, dtype)}


def _unpack_rows(body: Mapping[str, Any]) -> list[Row]:
    count, bad = int(body["n"]), {int(i): from_wire(e) for i, e in body["bad"]}
    columns = [_unpack_column(c, count - len(bad)) for c in body["out"]]
    good = iter(zip(*columns, strict=True))
    return [bad[i] if i in bad else next(good) for i in range(count)]


def _unpack_column(column: Mapping[str, Any], rows: int) -> list[Array]:
    flat = np.frombuffer(column["d"], np.dtype(column["t"]))
    shape = tuple(column["s"])
    if "l" not in column:
        return list(flat.reshape(rows, *shape))
    ends = np.cumsum(np.frombuffer(column["l"], "<i4"))[:-1]
    return np.split(flat.reshape(-1, *shape), ends)


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


def _raw(array: Array, dtype: str) -> bytes:
    return np.ascontiguousarray(array, dtype).tobytes()


def _ids(data: Any, name: str) -> Any:
    if not isinstance(data, bytes) or len(data) % 4:
        raise BadChunkError(f"{name!r} must be raw int32 bytes")
    return np.frombuffer(data, "<i4")


def _spans(data: Any) -> Any:
    flat = _ids(data, "spans")
    if flat.size % 3:
        raise BadChunkError("'spans' must hold three int32 per span")
    return flat.reshape(-1, 3)


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise BadChunkError(f"{name!r} must be text, found {type(value).__name__}")
    return value


def _spec(body: Any) -> OutputSpec:
    if not isinstance(body, dict):
        raise BadChunkError("'out' must be a map")
    task, norm = body.get("task", "embed"), body.get("norm")
    dtypes, dims = tuple(body.get("dtypes", ("float32",))), tuple(body.get("dims", ()))
    if task not in TASKS or not dtypes or any(d not in DTYPES for d in dtypes):
        raise BadChunkError(f"unknown task or dtype in 'out': {task!r}, {list(dtypes)!r}")
    if any(type(d) is not int or d < 1 for d in dims) or norm not in (None, True, False):
        raise BadChunkError(f"bad 'dims' or 'norm' in 'out': {list(dims)!r}, {norm!r}")
    return OutputSpec(task, dtypes, dims, norm)
