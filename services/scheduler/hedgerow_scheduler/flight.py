"""A batch between its start on the device and its settlement."""

from __future__ import annotations

from dataclasses import dataclass

from hedgerow_scheduler.batching import cut, distinct, join
from hedgerow_scheduler.packer import Packed, Piece
from hedgerow_scheduler.ports import LazyTensor
from hedgerow_scheduler.replies import Held
from hedgerow_shared.ragged import Lane, RaggedBatch, Row

KNOWN_GOOD = RaggedBatch.of([[0, 1, 2, 3]])
"""Token ids that every vocabulary has."""


@dataclass(slots=True, eq=False)
class Flight:
    """One started batch. `done_s` is set by the engine's thread, all else by the loop's.

    repeats: see `distinct`; the rows that come back answer more sequences than ran

    A probe carries KNOWN_GOOD and no pieces: nobody waits for its rows.
    """

    packed: Packed[Held]
    started_s: float
    lazy: LazyTensor | None = None
    error: Exception | None = None
    done_s: float | None = None
    repeats: list[int] | None = None

    @property
    def is_probe(self) -> bool:
        return not self.packed.pieces

    def batch(self) -> RaggedBatch:
        """What the engine runs."""
        if self.is_probe:
            return KNOWN_GOOD
        batch, self.repeats = distinct(join([_part(piece) for piece in self.packed.pieces]))
        return batch

    def rows(self) -> list[Row]:
        """The rows of the finished batch; raises what the step raised."""
        if self.error is not None:
            raise self.error
        assert self.lazy is not None, "a flight has a tensor or an error"
        rows = self.lazy.result().rows
        return rows if self.repeats is None else [rows[i] for i in self.repeats]

    def release(self) -> None:
        if self.lazy is not None:
            self.lazy.release()


def probe(model: str) -> Packed[Held]:
    """An empty batch that runs KNOWN_GOOD: does this engine still work at all?"""
    return Packed(model, Lane.QUERY)


def halves(packed: Packed[Held]) -> list[Packed[Held]]:
    """The two halves of a batch, or nothing when it holds one sequence."""
    pieces = [Piece(p.owner, i, i + 1) for p in packed.pieces for i in range(p.start, p.stop)]
    middle = len(pieces) // 2
    return [_packed(packed, half) for half in (pieces[:middle], pieces[middle:]) if middle]


def _packed(whole: Packed[Held], pieces: list[Piece[Held]]) -> Packed[Held]:
    tokens = sum(p.owner.seqlens[p.start] for p in pieces)
    return Packed(whole.model, whole.lane, pieces, float(tokens), tokens)


def _part(piece: Piece[Held]) -> RaggedBatch:
    batch = piece.owner.batch
    if piece.start == 0 and piece.stop == batch.num_seqs:
        return batch
    return cut(batch, piece.start, piece.stop)
