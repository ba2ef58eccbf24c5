"""Cutting and joining batches against doing the same by hand, sequence by sequence."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hedgerow_scheduler.batching import cut, distinct, join
from hedgerow_shared.ragged import OutputSpec, RaggedBatch, check


@st.composite
def batches(draw: st.DrawFn) -> RaggedBatch:
    lens = draw(st.lists(st.integers(1, 6), min_size=1, max_size=5))
    ids = [draw(st.lists(st.integers(0, 99), min_size=n, max_size=n)) for n in lens]
    plain = RaggedBatch.of(ids, OutputSpec(dimensions=(draw(st.integers(1, 9)),)))
    offsets = [
        np.array([draw(st.integers(0, n - 1)) for n in lens], np.int32)
        if draw(st.booleans())
        else np.zeros(0, np.int32)
        for _ in range(2)
    ]
    spans = [(i, 0, n) for i, n in enumerate(lens) for _ in range(draw(st.integers(0, 2)))]
    return RaggedBatch(
        plain.input_ids,
        plain.cu_seqlens,
        plain.outputs,
        *offsets,
        np.array(spans, np.int32).reshape(-1, 3),
    )


def rows(batch: RaggedBatch) -> list[Any]:
    """Everything a batch says about each of its sequences."""
    return [
        (
            batch.sequence(i).tolist(),
            batch.outputs[i],
            int(batch.pair_start[i]) if batch.pair_start.size else 0,
            int(batch.prompt_len[i]) if batch.prompt_len.size else 0,
            [(a, b) for s, a, b in batch.spans.tolist() if s == i],
        )
        for i in range(batch.num_seqs)
    ]


@given(st.lists(batches(), min_size=1, max_size=4))
def test_joined_batches_say_of_each_sequence_what_their_parts_said(
    parts: list[RaggedBatch],
) -> None:
    joined = join(parts)
    check(joined)
    assert rows(joined) == [row for part in parts for row in rows(part)]
    assert joined.input_ids.dtype == joined.cu_seqlens.dtype == joined.spans.dtype == np.int32


@given(batches(), st.data())
def test_a_cut_says_of_its_sequences_what_the_whole_said(
    batch: RaggedBatch, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, batch.num_seqs - 1))
    stop = data.draw(st.integers(start + 1, batch.num_seqs))
    part = cut(batch, start, stop)
    check(part)
    assert rows(part) == rows(batch)[start:stop]


@given(st.lists(batches(), min_size=1, max_size=4), st.integers(0, 2))
def test_what_repeats_is_left_out_and_found_again(parts: list[RaggedBatch], times: int) -> None:
    plain = [RaggedBatch(p.input_ids, p.cu_seqlens, p.outputs, p.pair_start, p.prompt_len)
             for p in parts]  # fmt: skip
    whole = join(plain + plain[:times])
    smaller, index = distinct(whole)
    check(smaller)
    found, wanted = rows(smaller), rows(whole)
    keys = [str(row) for row in found]
    assert len(set(keys)) == len(keys), "nothing runs twice"
    assert [found[i] for i in (index or range(whole.num_seqs))] == wanted
    assert (index is None) == (smaller.num_seqs == whole.num_seqs)


def test_sequences_with_spans_and_lone_sequences_are_left_as_they_are() -> None:
    alone = RaggedBatch.of([[1, 2]])
    assert distinct(alone) == (alone, None)
    spans = np.array([[0, 0, 1]], np.int32)
    twice = RaggedBatch.of([[1, 2], [1, 2]])
    both = RaggedBatch(twice.input_ids, twice.cu_seqlens, twice.outputs, spans=spans)
    assert distinct(both)[1] is None
