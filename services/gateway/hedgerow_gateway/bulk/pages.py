"""A page of results -> the bytes of an answer: JSON in pieces, or msgpack with raw vectors."""

from __future__ import annotations

import binascii
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgpack
import numpy as np
import orjson

from hedgerow_gateway.bulk.records import Job
from hedgerow_gateway.failures import row_error
from hedgerow_gateway.schema import Encoding
from hedgerow_shared.bus.jetstream import Stored
from hedgerow_shared.errors import BadChunkError, HedgerowError
from hedgerow_shared.jobs import RowId, decode_result
from hedgerow_shared.ragged import DType, Row
from hedgerow_shared.wire import decode_reply

_ROWS_PER_PIECE = 64
_NUMPY = {"float32": "<f4", "float16": "<f2", "int8": "|i1", "binary": "|u1"}
# Bytes of JSON for a byte of the array.
_GROWTH = {"float32": 11 / 4, "float16": 11 / 2, "int8": 5.0, "binary": 4.0}


@dataclass(frozen=True, slots=True)
class Result:
    """One stored message: the rows of one chunk."""

    seq: int
    fingerprint: str
    ids: Sequence[RowId]
    seen: Sequence[int]
    used: Sequence[int]
    rows: Sequence[Row]


@dataclass(frozen=True, slots=True)
class Page:
    """following: where the next page starts. pending: chunks stored behind this page."""

    job: Job
    results: Sequence[Result]
    following: int
    pending: int

    @property
    def width(self) -> int:
        """Numbers of one vector, as numpy holds it; 0 while no row has one."""
        rows = (row for result in self.results for row in result.rows)
        return next((len(row[0]) for row in rows if not isinstance(row, HedgerowError)), 0)

    def first(self, count: int) -> Page:
        """The page with only its first results."""
        left_out = len(self.results) - count
        return Page(
            self.job, self.results[:count], self.results[count].seq, self.pending + left_out
        )


def read(stored: Stored) -> Result:
    """Raises BadChunkError for a message that no worker of ours stored."""
    message = decode_result(stored.data)
    reply = decode_reply(message.body)
    count = len(message.ids)
    seen, used = (_int32(block, count) for block in (message.seen, message.used))
    if len(reply.rows) != count:
        raise BadChunkError(f"{len(reply.rows)} rows for {count} ids")
    return Result(stored.seq, reply.fingerprint, message.ids, seen, used, reply.rows)


def raw_bytes(dtype: DType, answer_bytes: int, encoding: Encoding | None) -> int:
    """Bytes of stored results that fit into an answer of a size. encoding None: msgpack."""
    growth = 1.0 if encoding is None else 4 / 3 if encoding == "base64" else _GROWTH[dtype]
    return int(answer_bytes * 0.8 / growth)


def to_json(page: Page, encoding: Encoding) -> Iterator[bytes]:
    """One JSON object, in pieces."""
    yield b'{"results":['
    begun = False
    for items in _in_pieces(page, encoding):
        piece = orjson.dumps(items, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1]
        yield b"," + piece if begun else piece
        begun = True
    yield b"]," + orjson.dumps(_head(page))[1:]


def to_msgpack(page: Page) -> bytes:
    """Vectors as one block, C order; a failed row is zeros and named in `errors`."""
    rows = [row for result in page.results for row in result.rows]
    data = np.zeros((len(rows), page.width), _NUMPY[page.job.dtype])
    errors: list[dict[str, Any]] = []
    for i, row in enumerate(rows):
        if isinstance(row, HedgerowError):
            errors.append(row_error(i, row))
        else:
            data[i] = row[0]
    body = {
        **_head(page),
        "ids": [name for result in page.results for name in result.ids],
        "tokens_seen": [n for result in page.results for n in result.seen],
        "tokens_used": [n for result in page.results for n in result.used],
        "shape": list(data.shape),
        "data": data.tobytes(),
        "errors": errors,
    }
    packed = msgpack.packb(body)
    assert packed is not None, "packb returns bytes unless given a stream"
    return packed


def _head(page: Page) -> dict[str, Any]:
    return {
        "job": page.job.job,
        "model": page.job.model,
        "dtype": page.job.dtype,
        "fingerprints": sorted({result.fingerprint for result in page.results}),
        "next": page.following,
        "pending_chunks": page.pending,
    }


def _in_pieces(page: Page, encoding: Encoding) -> Iterator[list[dict[str, Any]]]:
    items: list[dict[str, Any]] = []
    for result in page.results:
        for name, seen, used, row in zip(
            result.ids, result.seen, result.used, result.rows, strict=True
        ):
            items.append(_item(name, seen, used, row, encoding))
        if len(items) >= _ROWS_PER_PIECE:
            yield items
            items = []
    if items:
        yield items


def _item(name: RowId, seen: int, used: int, row: Row, encoding: Encoding) -> dict[str, Any]:
    item: dict[str, Any] = {"id": name}
    if isinstance(row, HedgerowError):
        item["error"] = {"code": row.code, "message": row.message}
    elif encoding == "base64":
        item["embedding"] = binascii.b2a_base64(row[0].tobytes(), newline=False).decode("ascii")
    else:
        vector = row[0]
        item["embedding"] = vector if vector.dtype != np.float16 else vector.astype(np.float32)
    item |= {"tokens_seen": seen, "tokens_used": used, "truncated": seen > used}
    return item


def _int32(block: bytes, count: int) -> list[int]:
    if len(block) != 4 * count:
        raise BadChunkError(f"{len(block)} bytes of token counts for {count} rows")
    return np.frombuffer(block, "<i4").tolist()
