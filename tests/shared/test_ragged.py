"""Batches: built, taken apart, checked."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hedgerow_shared.errors import BadChunkError
from hedgerow_shared.ragged import EMBED, OutputSpec, RaggedBatch, check, width_bytes

SEQUENCES = st.lists(
    st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=9), min_size=1, max_size=6
)


@given(SEQUENCES)
def test_a_batch_gives_back_the_sequences_it_was_built_from(sequences):
    batch = RaggedBatch.of(sequences)
    check(batch)
    assert [batch.sequence(i).tolist() for i in range(batch.num_seqs)] == sequences
    assert batch.seqlens.tolist() == [len(s) for s in sequences]
    assert batch.num_tokens == sum(len(s) for s in sequences)
    assert batch.input_ids.dtype == batch.cu_seqlens.dtype == np.int32


def test_a_sequence_is_a_view_and_not_a_copy():
    batch = RaggedBatch.of([[1, 2], [3]])
    assert np.shares_memory(batch.sequence(0), batch.input_ids)


def array(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def batch(ids=(1, 2, 3), cu=(0, 1, 3), n=2, **parts) -> RaggedBatch:
    return RaggedBatch(array(*ids), array(*cu), (EMBED,) * n, **parts)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (batch(cu=(0,), n=0), "no sequence"),
        (batch(cu=(), n=0), "no sequence"),
        (batch(ids=(), cu=(0, 0), n=1), "empty"),
        (batch(cu=(0, 1, 1, 3), n=3), "rise"),
        (batch(cu=(0, 2, 1, 3), n=3), "rise"),
        (batch(cu=(0, -(2**31), 3)), "rise"),
        (batch(cu=(1, 2, 3)), "runs from 1"),
        (batch(cu=(0, 1, 4)), "to 4"),
        (batch(n=1), "1 outputs for 2"),
        (batch(pair_start=array(0)), "pair_start"),
        (batch(pair_start=array(0, 2)), "pair_start"),
        (batch(prompt_len=array(-1, 0)), "prompt_len"),
        (batch(prompt_len=array(1, 0)), "prompt_len"),
        (batch(spans=array(0, 0, 1)), "num_spans"),
        (batch(spans=array(2, 0, 1).reshape(1, 3)), "not in the chunk"),
        (batch(spans=array(-1, 0, 1).reshape(1, 3)), "not in the chunk"),
        (batch(spans=array(1, 0, 1, 0, 0, 1).reshape(2, 3)), "ordered"),
        (batch(spans=array(1, 0, 3).reshape(1, 3)), "outside"),
        (batch(spans=array(1, 1, 1).reshape(1, 3)), "empty"),
        (batch(spans=array(1, -1, 1).reshape(1, 3)), "outside"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_a_batch_that_does_not_add_up_is_refused(wrong, message):
    with pytest.raises(BadChunkError, match=message):
        check(wrong)


def test_offsets_inside_their_sequences_are_fine():
    check(batch(pair_start=array(0, 1), prompt_len=array(0, 1)))
    check(batch(spans=array(0, 0, 1, 1, 0, 1, 1, 1, 2).reshape(3, 3)))


@pytest.mark.parametrize(
    ("dtype", "dimension", "expected"),
    [("float32", 384, 1536), ("float16", 384, 768), ("int8", 384, 384), ("binary", 385, 49)],
)
def test_the_width_of_a_vector_on_the_wire(dtype, dimension, expected):
    assert width_bytes(dtype, dimension) == expected


def test_a_row_holds_every_dtype_at_every_dimension():
    spec = OutputSpec(dtypes=("float32", "binary"), dimensions=(256, 64))
    assert spec.wanted(384) == [
        ("float32", 256),
        ("float32", 64),
        ("binary", 256),
        ("binary", 64),
    ]
    assert spec.row_bytes(384) == 1024 + 256 + 32 + 8
    assert EMBED.row_bytes(384) == 1536
