"""Cutting batches into passes, and the table of rows a pass answers."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hedgerow_engine.native.passes import Cut, cut_batch, pool_table
from hedgerow_engine.native.words import POOL
from hedgerow_shared.ragged import RaggedBatch

lengths = st.lists(st.integers(1, 40), min_size=1, max_size=30)


def _batch(seqlens, spans=(), prompts=()) -> RaggedBatch:
    plain = RaggedBatch.of([[0] * n for n in seqlens])
    return RaggedBatch(
        plain.input_ids,
        plain.cu_seqlens,
        plain.outputs,
        prompt_len=np.asarray(prompts, np.int32),
        spans=np.asarray(spans, np.int32).reshape(-1, 3),
    )


@given(lengths, st.integers(1, 100))
def test_cuts_hold_every_sequence_once_and_no_more_than_the_budget(seqlens, budget) -> None:
    cuts = cut_batch(_batch(seqlens), budget)
    assert [i for c in cuts for i in range(c.first, c.last)] == list(range(len(seqlens)))
    for cut in cuts:
        own = seqlens[cut.first : cut.last]
        assert (cut.num_tokens, cut.longest, cut.num_rows) == (sum(own), max(own), len(own))
        assert cut.first_row == cut.first
        assert cut.num_tokens <= budget or len(own) == 1


@given(lengths, st.integers(1, 100))
def test_a_cut_ends_only_where_the_next_sequence_does_not_fit(seqlens, budget) -> None:
    cuts = cut_batch(_batch(seqlens), budget)
    for cut, after in itertools.pairwise(cuts):
        assert cut.num_tokens + seqlens[after.first] > budget


def _entries(table: np.ndarray) -> list[tuple[int, ...]]:
    assert table.shape[1] * 8 == POOL.num_bytes
    return [tuple(row) for row in table.tolist()]


def test_whole_sequences_need_no_table() -> None:
    batch = _batch([3, 4])
    (cut,) = cut_batch(batch, 100)
    assert pool_table(batch, cut, skip_prompts=True) is None


def test_prompts_are_left_out_only_where_the_model_says_so() -> None:
    batch = _batch([5, 4], prompts=[2, 0])
    (cut,) = cut_batch(batch, 100)
    assert pool_table(batch, cut, skip_prompts=False) is None
    table = pool_table(batch, cut, skip_prompts=True)
    assert table is not None and _entries(table) == [(2, 5, 2), (5, 9, 0)]


def test_rows_of_a_later_cut_count_from_its_own_first_token() -> None:
    batch = _batch([5, 4, 6], spans=[(1, 0, 2), (1, 1, 4), (2, 5, 6)])
    cuts = cut_batch(batch, 8)
    assert cuts == [Cut(0, 1, 5, 5, 0, 1), Cut(1, 2, 4, 4, 1, 2), Cut(2, 3, 6, 6, 3, 1)]
    tables = [pool_table(batch, cut, skip_prompts=False) for cut in cuts]
    assert [_entries(t) for t in tables if t is not None] == [
        [(0, 5, 0)],
        [(0, 2, 0), (1, 4, 1)],
        [(5, 6, 5)],
    ]
