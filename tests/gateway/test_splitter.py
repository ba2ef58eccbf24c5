"""Chunks: nothing lost, nothing reordered, no limit broken except by a sequence alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hedgerow_gateway.splitter import EMBED, RERANK, ChunkLimits, split

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
