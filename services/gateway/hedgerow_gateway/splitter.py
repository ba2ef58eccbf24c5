"""Cut a request into chunks: by sequences, tokens and bytes of the answer. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ChunkLimits:
    """A chunk ends before the sequence that would break one of these; it is never empty."""

    sequences: int = 8
    tokens: int = 4096
    reply_bytes: int = 64 * 1024


EMBED = ChunkLimits()

# The fleet should share one rerank request evenly, although each chunk goes to a random worker:
# two sequences of 512 tokens, or as many short ones as cost no more.
RERANK = ChunkLimits(tokens=1024)


_SHARES = 64
"""Chunks that a fleet should get of a large request before they grow."""
_MOST_SEQUENCES = 64


def bulk_limits(num_seqs: int) -> ChunkLimits:
    """Of a request on the bulk lane. Each chunk costs gateway, bus and worker a turn, so
    thousands of short texts go in fewer ones, once there are enough for every worker."""
    sequences = max(EMBED.sequences, min(num_seqs // _SHARES, _MOST_SEQUENCES))
    return ChunkLimits(sequences=sequences)


def split(
    seqlens: Sequence[int], reply_bytes: Sequence[int] | int, limits: ChunkLimits
) -> list[tuple[int, int]]:
    """Return (start, stop) of each chunk, in order and without gaps.

    seqlens: tokens of each sequence
    reply_bytes: bytes of each sequence's answer, or one number for all

    A sequence over a limit by itself travels alone.
    """
    chunks: list[tuple[int, int]] = []
    start = tokens = size = 0
    for i, length in enumerate(seqlens):
        width = reply_bytes if isinstance(reply_bytes, int) else reply_bytes[i]
        full = (
            i - start >= limits.sequences
            or tokens + length > limits.tokens
            or size + width > limits.reply_bytes
        )
        if full and i > start:
            chunks.append((start, i))
            start, tokens, size = i, 0, 0
        tokens, size = tokens + length, size + width
    if seqlens:
        chunks.append((start, len(seqlens)))
    return chunks
