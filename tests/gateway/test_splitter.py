"""Chunks: nothing lost, nothing reordered, no limit broken except by a sequence alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hedgerow_gateway.splitter import EMBED, RERANK, ChunkLimits, bulk_limits, split

LENGTHS = st.lists(st.integers(1, 6000), max_size=60)
WIDTHS = st.integers(1, 100_000)


@given(LENGTHS, WIDTHS, st.sampled_from([EMBED, RERANK, ChunkLimits(1, 10, 10)]))
def test_chunks_cover_everything_once_and_keep_the_limits(seqlens, width, limits):
    chunks = split(seqlens, width, limits)
    assert [i for start, stop in chunks for i in range(start, stop)] == list(range(len(seqlens)))
    for start, stop in chunks:
        if stop - start > 1:
            assert stop - start <= limits.sequences
            assert sum(seqlens[start:stop]) <= limits.tokens
            assert (stop - start) * width <= limits.reply_bytes


@given(LENGTHS, WIDTHS)
def test_a_chunk_ends_only_where_the_next_sequence_would_break_a_limit(seqlens, width):
    chunks = split(seqlens, width, EMBED)
    for start, stop in chunks[:-1]:
        assert (
            stop + 1 - start > EMBED.sequences
            or sum(seqlens[start : stop + 1]) > EMBED.tokens
            or (stop + 1 - start) * width > EMBED.reply_bytes
        )


@pytest.mark.parametrize(
    ("seqlens", "width", "limits", "expected"),
    [
        ([], 4, EMBED, []),
        ([7], 4, EMBED, [(0, 1)]),
        ([9000], 4, EMBED, [(0, 1)]),
        ([100, 9000, 100], 4, EMBED, [(0, 1), (1, 2), (2, 3)]),
        ([10] * 9, 4, EMBED, [(0, 8), (8, 9)]),
        ([512] * 9, 4, EMBED, [(0, 8), (8, 9)]),
        ([10] * 4, 32 * 1024, EMBED, [(0, 2), (2, 4)]),
        ([512] * 5, 4, RERANK, [(0, 2), (2, 4), (4, 5)]),
        ([40] * 10, 4, RERANK, [(0, 8), (8, 10)]),
    ],
    ids=["none", "one", "long", "long-between", "sequences", "tokens", "bytes", "rerank", "short"],
)
def test_chunks_of_known_requests(seqlens, width, limits, expected):
    assert split(seqlens, width, limits) == expected


def test_widths_may_differ_by_sequence():
    assert split([1, 1, 1], [60_000, 60_000, 10], EMBED) == [(0, 1), (1, 3)]


@given(st.integers(0, 100_000))
def test_large_requests_go_in_larger_chunks_once_there_are_enough_for_a_fleet(num_seqs):
    limits = bulk_limits(num_seqs)
    assert EMBED.sequences <= limits.sequences <= 64
    assert (limits.tokens, limits.reply_bytes) == (EMBED.tokens, EMBED.reply_bytes)
    if limits.sequences > EMBED.sequences:
        assert len(split([1] * num_seqs, 4, limits)) >= 64


@pytest.mark.parametrize(("num_seqs", "sequences"), [(1, 8), (575, 8), (1000, 15), (5000, 64)])
def test_sequences_of_a_chunk_of_known_requests(num_seqs, sequences):
    assert bulk_limits(num_seqs).sequences == sequences
