"""Rows of one submission -> bulk chunks. Pure, and the same rows give the same chunks again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import msgpack
import numpy as np

from hedgerow_gateway.splitter import ChunkLimits, split
from hedgerow_gateway.tokenizer.encoded import Encoded
from hedgerow_shared.jobs import BulkChunk, RowId, Tally, encode
from hedgerow_shared.ragged import Lane, OutputSpec
from hedgerow_shared.wire import Chunk, encode_chunk

_NO_END_MS = 1e15


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What one submission adds to a job.

    key: a digest of its rows. A submission that is sent again, after an answer was lost, makes
        chunks of the same names, and what is stored already is recognised by them
    spans: (start, stop) of each chunk
    """

    job: str
    model: str
    fingerprint: str
    key: str
    ids: Sequence[RowId]
    encoded: Encoded
    output: OutputSpec
    spans: Sequence[tuple[int, int]]
    ack_wait_s: float
    trace: str = ""

    @property
    def tally(self) -> Tally:
        return Tally(len(self.ids), 0, self.encoded.num_tokens)

    def chunks(self) -> Iterator[tuple[str, bytes, Tally]]:
        """(name, message, counts) of each chunk."""
        for n, (start, stop) in enumerate(self.spans):
            batch = self.encoded.batch(start, stop, self.output)
            name = f"{self.key}-{n}"
            chunk = Chunk(
                f"{self.job}.{name}",
                self.model,
                Lane.BULK,
                _NO_END_MS,
                batch,
                self.fingerprint,
                self.trace,
            )
            message = BulkChunk(
                job=self.job,
                chunk=name,
                ids=list(self.ids[start:stop]),
                seen=np.asarray(self.encoded.seen[start:stop], "<i4").tobytes(),
                wait_ms=max(int(self.ack_wait_s * 1e3), 1),
                body=encode_chunk(chunk),
            )
            yield name, encode(message), Tally(stop - start, 0, batch.num_tokens)


def part_key(ids: Sequence[RowId], encoded: Encoded, cuts: Sequence[tuple[int, int]]) -> str:
    """24 hex digits that depend on the rows, their names, tokens and prompts, and on how they are
    cut: two chunks of one name must never hold different rows."""
    digest = blake2b(digest_size=12)
    for block in (
        msgpack.packb(list(ids)) or b"",
        np.ascontiguousarray(encoded.cu_seqlens, "<i4").tobytes(),
        np.ascontiguousarray(encoded.input_ids, "<i4").tobytes(),
        np.ascontiguousarray(encoded.prompt_len, "<i4").tobytes(),
        np.array(cuts, "<i4").tobytes(),
    ):
        digest.update(len(block).to_bytes(8, "little"))
        digest.update(block)
    return digest.hexdigest()


def spans(encoded: Encoded, row_bytes: int, limits: ChunkLimits) -> list[tuple[int, int]]:
    """Where to cut. row_bytes: of one row of the result."""
    return split(encoded.used.tolist(), row_bytes, limits)
