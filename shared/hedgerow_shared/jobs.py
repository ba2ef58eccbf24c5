"""Messages of bulk jobs: what the gateway stores for the workers, and what they store in answer.

A bulk chunk is an ordinary chunk in an envelope that says whose it is; its result is an ordinary
reply in an envelope. Pure: no clock, no bus.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec

from hedgerow_shared.errors import BadChunkError, BadInputError, HedgerowError
from hedgerow_shared.subjects import HEADER_FAILED, HEADER_ROWS, HEADER_TOKENS
from hedgerow_shared.wire import ChunkReply

VERSION = 1
MAX_ROW_ID = 512
MAX_JOB_ID = 64

RowId = str | int

_JOB = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_NOT_A_NAME = re.compile(r"[^A-Za-z0-9_-]")
_Text = Annotated[str, msgspec.Meta(max_length=1024)]


class BulkChunk(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One message of the stream HEDGEROW_BULK.

    job, chunk: together the key of its result; chunk is one subject token
    ids: the caller's name of each row
    seen: int32 [num_seqs] little-endian, tokens each whole text had before it was cut
    wait_ms: how soon the stream delivers it again when the worker says nothing
    body: the chunk, see wire.encode_chunk
    """

    v: Literal[1] = VERSION
    job: _Text
    chunk: _Text
    ids: list[RowId]
    seen: bytes
    wait_ms: Annotated[int, msgspec.Meta(ge=1)]
    body: bytes


class BulkResult(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One message of the stream HEDGEROW_RESULT; rows in the order of the chunk.

    used: int32 [num_seqs] little-endian, tokens of each sequence
    body: the reply, see wire.encode_reply: one row or error per sequence
    """

    v: Literal[1] = VERSION
    job: _Text
    chunk: _Text
    ids: list[RowId]
    seen: bytes
    used: bytes
    body: bytes


@dataclass(frozen=True, slots=True)
class Tally:
    """What the headers of a result or receipt say, so that counting needs no bodies."""

    rows: int
    failed: int = 0
    tokens: int = 0

    @property
    def headers(self) -> dict[str, str]:
        return {
            HEADER_ROWS: str(self.rows),
            HEADER_FAILED: str(self.failed),
            HEADER_TOKENS: str(self.tokens),
        }


def tally_of(headers: Mapping[str, str]) -> Tally:
    """Raises BadChunkError for headers that `Tally.headers` did not make."""
    try:
        rows, failed, tokens = (
            int(headers[n]) for n in (HEADER_ROWS, HEADER_FAILED, HEADER_TOKENS)
        )
    except (KeyError, ValueError):
        raise BadChunkError("a stored result without its counts") from None
    if not 0 <= failed <= rows or tokens < 0:
        raise BadChunkError(f"{failed} of {rows} rows failed, {tokens} tokens: impossible")
    return Tally(rows, failed, tokens)


def tally(reply: ChunkReply, tokens: int) -> Tally:
    """The counts of a reply that has one row or error per sequence."""
    failed = sum(isinstance(row, HedgerowError) for row in reply.rows)
    return Tally(len(reply.rows), failed, tokens)


_encoder = msgspec.msgpack.Encoder()
_chunks = msgspec.msgpack.Decoder(BulkChunk)
_results = msgspec.msgpack.Decoder(BulkResult)


def encode(message: BulkChunk | BulkResult) -> bytes:
    return _encoder.encode(message)


def decode_chunk(data: bytes) -> BulkChunk:
    """Raises BadChunkError for anything that is not one."""
    try:
        return _chunks.decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise BadChunkError(f"bulk chunk not readable: {error!s:.200}") from None


def decode_result(data: bytes) -> BulkResult:
    """Raises BadChunkError for anything that is not one."""
    try:
        return _results.decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise BadChunkError(f"bulk result not readable: {error!s:.200}") from None


def check_job_id(job: str, param: str = "job") -> str:
    """The id itself. Raises BadInputError for one that cannot be a subject token."""
    if len(job) > MAX_JOB_ID or not _JOB.fullmatch(job):
        raise BadInputError(
            f"must be up to {MAX_JOB_ID} letters, digits, '-' and '_', the first of them a letter "
            "or digit",
            param=param,
        )
    return job


def consumer_name(token: str) -> str:
    """The durable consumer from which the workers of a model (its subject token) pull.

    Characters a consumer may not have are written as their code, so that no two tokens meet.
    """
    return "workers-" + _NOT_A_NAME.sub(lambda found: f"={ord(found[0]):x}=", token)
