"""A batch laid out for the device, and its rows read back in the order of the batch."""

from __future__ import annotations

import numpy as np

from hedgerow_engine.staging import Group, fill, lay_out
from hedgerow_shared.ragged import RaggedBatch

BATCH = RaggedBatch(
    np.array([10, 11, 12, 20, 30, 31, 32, 40, 41], np.int32),
    np.array([0, 3, 4, 7, 9], np.int32),
    RaggedBatch.of([[1]] * 4).outputs,
    pair_start=np.array([2, 0, 0, 1], np.int32),
    prompt_len=np.array([1, 0, 2, 0], np.int32),
)


def test_sequences_lie_in_length_order_and_equal_ones_form_a_group() -> None:
    layout = lay_out(BATCH, include_prompt=True)
    assert layout.order.tolist() == [1, 3, 0, 2]
    assert layout.groups == (Group(0, 1, 1), Group(1, 1, 2), Group(3, 2, 3))
    assert layout.first.tolist() == [3, 0, 6, 1] and layout.last.tolist() == [5, 0, 8, 2]
    assert layout.whole


def test_inputs_are_filled_with_positions_types_and_a_harmless_tail() -> None:
    ids, positions, types = (np.full(12, 99, np.int32) for _ in range(3))
    fill(BATCH, lay_out(BATCH, include_prompt=True), ids, positions, types)
    assert ids.tolist() == [20, 40, 41, 10, 11, 12, 30, 31, 32, 0, 0, 0]
    assert positions.tolist() == [0, 0, 1, 0, 1, 2, 0, 1, 2, 0, 0, 0]
    assert types.tolist() == [0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0]


def test_prompts_are_left_out_of_pooling_only_where_the_model_says_so() -> None:
    assert lay_out(BATCH, include_prompt=True).pool_starts.tolist() == [3, 0, 6, 1]
    layout = lay_out(BATCH, include_prompt=False)
    assert layout.pool_starts.tolist() == [4, 0, 8, 1] and not layout.whole
    assert layout.pool_ends.tolist() == [6, 1, 9, 3]
    assert layout.pool_offsets.tolist() == [1, 0, 2, 0]


def test_spans_give_one_row_each_in_batch_order() -> None:
    batch = RaggedBatch(
        BATCH.input_ids,
        BATCH.cu_seqlens,
        BATCH.outputs,
        spans=np.array([[0, 0, 1], [0, 1, 3], [2, 1, 2]], np.int32),
    )
    layout = lay_out(batch, include_prompt=True)
    ranges = list(zip(layout.pool_starts.tolist(), layout.pool_ends.tolist()))
    assert ranges == [(3, 4), (4, 6), (0, 1), (7, 8), (1, 3)]
    assert layout.pool_offsets.tolist() == [0, 1, 0, 1, 0]
