"""Chunks and replies: there and back again, and no other error than BadChunkError."""

import dataclasses

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from hedgerow_shared.errors import (
    BadChunkError,
    BadInputError,
    HedgerowError,
    OverloadedError,
    Problem,
    RowError,
)
from hedgerow_shared.ragged import EMBED, Lane, OutputSpec, RaggedBatch
from hedgerow_shared.wire import Chunk, ChunkReply, decode_chunk, decode_reply
from hedgerow_shared.wire import encode_chunk as to_bytes
from hedgerow_shared.wire import encode_reply as reply_to_bytes

SPECS = st.builds(
    OutputSpec,
    task=st.sampled_from(["embed", "score", "classify", "sparse", "multivector"]),
    dtypes=st.lists(
        st.sampled_from(["float32", "float16", "int8", "binary"]), min_size=1, unique=True
    ).map(tuple),
    dimensions=st.lists(st.integers(1, 4096), max_size=3, unique=True).map(tuple),
    normalize=st.sampled_from([None, True, False]),
)


@st.composite
def batches(draw: st.DrawFn) -> RaggedBatch:
    lens = draw(st.lists(st.integers(1, 20), min_size=1, max_size=6))
    ids = [draw(npst.arrays(np.int32, n)) for n in lens]
    batch = RaggedBatch.of(ids, draw(SPECS))
    offsets = st.tuples(*(st.integers(0, n - 1) for n in lens)).map(lambda v: np.array(v, np.int32))
    if draw(st.booleans()):
        batch = dataclasses.replace(batch, pair_start=draw(offsets), prompt_len=draw(offsets))
    if draw(st.booleans()):
        spans = [(i, 0, n) for i, n in enumerate(lens) for _ in range(draw(st.integers(0, 2)))]
        batch = dataclasses.replace(batch, spans=np.array(spans, np.int32).reshape(-1, 3))
    return batch


CHUNKS = st.builds(
    Chunk,
    id=st.text(max_size=20),
    model=st.text(max_size=20),
    lane=st.sampled_from(Lane),
    ttl_ms=st.floats(0, 1e9),
    batch=batches(),
    fingerprint=st.text("0123456789abcdef", max_size=12),
    trace=st.text(max_size=55),
)


def same_batch(a: RaggedBatch, b: RaggedBatch) -> bool:
    arrays = ("input_ids", "cu_seqlens", "pair_start", "prompt_len", "spans")
    return a.outputs == b.outputs and all(
        np.array_equal(getattr(a, name), getattr(b, name)) for name in arrays
    )


@given(CHUNKS)
def test_a_chunk_survives_the_wire(chunk):
    back = decode_chunk(to_bytes(chunk))
    assert same_batch(back.batch, chunk.batch)
    for name in ("id", "model", "lane", "ttl_ms", "fingerprint", "trace"):
        assert getattr(back, name) == getattr(chunk, name)


def test_ids_travel_as_raw_bytes():
    ids = np.arange(4096, dtype=np.int32)
    message = to_bytes(Chunk("c", "m", Lane.QUERY, 1000, RaggedBatch.of([ids])))
    assert ids.tobytes() in message
    assert len(message) < ids.nbytes + 200


def rows_of(kind: str) -> list:
    f32 = np.arange(12, dtype=np.float32)
    return {
        "equal rows": [(f32[:4],), (f32[4:8],)],
        "one row": [(f32,)],
        "two columns": [(f32[:4], np.uint8([1])), (f32[4:8], np.uint8([2]))],
        "every dtype": [(f32, f32.astype(np.float16), np.int8([-1]), np.uint8([255]))],
        "ragged": [(f32.reshape(3, 4),), (f32.reshape(3, 4)[:1],)],
        "sparse": [(np.int32([5, 7]), np.float32([0.5, 1])), (np.int32([1]), np.float32([2]))],
        "nothing in any row": [(np.int32([]), np.float32([])), (np.int32([]), np.float32([]))],
        "an error in the middle": [(f32[:4],), RowError("not finite"), (f32[4:8],)],
        "errors only": [RowError("a"), OverloadedError("b", retry_after_s=2.5)],
        "not native bytes": [(f32.astype(">f4"),)],
    }[kind]


@pytest.mark.parametrize(
    "kind",
    [
        "equal rows",
        "one row",
        "two columns",
        "every dtype",
        "ragged",
        "sparse",
        "nothing in any row",
        "an error in the middle",
        "errors only",
        "not native bytes",
    ],
)
def test_rows_survive_the_wire(kind):
    rows = rows_of(kind)
    reply = ChunkReply("c", "w", rows, None, 1.5, 2.5, 77, "fp")
    back = decode_reply(reply_to_bytes(reply))
    assert dataclasses.replace(back, rows=[]) == dataclasses.replace(reply, rows=[])
    assert len(back.rows) == len(rows)
    for sent, got in zip(rows, back.rows, strict=True):
        if isinstance(sent, HedgerowError):
            assert type(got) is type(sent)
            assert str(got) == str(sent)
            continue
        assert len(got) == len(sent)
        for a, b in zip(sent, got, strict=True):
            assert b.dtype == a.dtype.newbyteorder("=")
            assert np.array_equal(a, b)


def test_an_error_for_the_whole_chunk_survives_the_wire():
    error = OverloadedError("queue full", retry_after_s=0.25)
    back = decode_reply(reply_to_bytes(ChunkReply("c", "w", error=error)))
    assert isinstance(back.error, OverloadedError)
    assert back.error.retry_after_s == 0.25
    assert back.rows == []


def test_every_problem_of_a_bad_input_survives_the_wire():
    error = BadInputError([Problem("input[0]", "empty"), Problem("input[3]", "not text")])
    back = decode_reply(reply_to_bytes(ChunkReply("c", "w", error=error)))
    assert isinstance(back.error, BadInputError)
    assert back.error.detail == error.detail


def good_chunk() -> dict:
    return msgpack.unpackb(to_bytes(Chunk("c", "m", Lane.QUERY, 1000, RaggedBatch.of([[1, 2]]))))


def good_reply() -> dict:
    rows = [(np.float32([1, 2]),), RowError("x"), (np.float32([3, 4]),)]
    return msgpack.unpackb(reply_to_bytes(ChunkReply("c", "w", rows)))


def ragged_reply() -> dict:
    rows = [(np.ones((2, 2), np.float32),), (np.ones((1, 2), np.float32),)]
    return msgpack.unpackb(reply_to_bytes(ChunkReply("c", "w", rows)))


I32 = lambda *values: np.array(values, "<i4").tobytes()  # noqa: E731

BAD_CHUNKS = {
    "another version": {"v": 2},
    "version as text": {"v": "1"},
    "no id": {"id": None},
    "id as bytes": {"id": b"c"},
    "id without end": {"id": "x" * 10_000},
    "model as number": {"model": 3},
    "lane out of range": {"lane": 3},
    "lane below": {"lane": -1},
    "lane as bool": {"lane": True},
    "lane as text": {"lane": "0"},
    "lane as list": {"lane": [0]},
    "ttl negative": {"ttl_ms": -1},
    "ttl not a number": {"ttl_ms": float("nan")},
    "ttl infinite": {"ttl_ms": float("inf")},
    "ttl as text": {"ttl_ms": "5"},
    "ttl as bool": {"ttl_ms": True},
    "ids as list": {"ids": [1, 2]},
    "ids not whole": {"ids": b"12345"},
    "ids missing": {"ids": b""},
    "cu empty": {"cu": b""},
    "cu one entry": {"cu": I32(0)},
    "cu not rising": {"cu": I32(0, 2, 2)},
    "cu falling": {"cu": I32(0, 3, 2)},
    "cu wrapping around": {"cu": I32(0, -(2**31), 2)},
    "cu not from zero": {"cu": I32(1, 2)},
    "cu beyond the ids": {"cu": I32(0, 3)},
    "cu of two gigabytes": {"cu": I32(0, 2**31 - 1)},
    "pair outside": {"pair": I32(2)},
    "pair negative": {"pair": I32(-1)},
    "pair for others": {"pair": I32(0, 0)},
    "prompt outside": {"prompt": I32(2)},
    "spans not whole": {"spans": I32(0, 0)},
    "span of nobody": {"spans": I32(1, 0, 1)},
    "span empty": {"spans": I32(0, 1, 1)},
    "span outside": {"spans": I32(0, 0, 3)},
    "span backwards": {"spans": I32(0, 2, 1)},
    "out as list": {"out": []},
    "task unknown": {"out": {"task": "translate"}},
    "task as list": {"out": {"task": ["embed"]}},
    "dtype unknown": {"out": {"dtypes": ["float64"]}},
    "dtypes as text": {"out": {"dtypes": "float32"}},
    "dtypes empty": {"out": {"dtypes": []}},
    "dtype twice": {"out": {"dtypes": ["int8", "int8"]}},
    "dims as bytes": {"out": {"dims": b"\x01\x02"}},
    "dims zero": {"out": {"dims": [0]}},
    "dims as float": {"out": {"dims": [1.5]}},
    "dims as bool": {"out": {"dims": [True]}},
    "dims without end": {"out": {"dims": list(range(1, 1000))}},
    "norm as number": {"out": {"norm": 1}},
    "trace as number": {"trace": 1},
    "fingerprint as list": {"fp": []},
}


@pytest.mark.parametrize("change", BAD_CHUNKS.values(), ids=BAD_CHUNKS.keys())
def test_a_chunk_with_one_wrong_part_is_refused(change):
    with pytest.raises(BadChunkError) as refused:
        decode_chunk(msgpack.packb({**good_chunk(), **change}))
    assert refused.value.status == 400
    assert len(refused.value.message) < 300


@pytest.mark.parametrize("key", ["v", "id", "model", "ttl_ms", "ids", "cu"])
def test_a_chunk_with_a_part_missing_is_refused(key):
    chunk = good_chunk()
    del chunk[key]
    with pytest.raises(BadChunkError, match=key if key != "v" else "version"):
        decode_chunk(msgpack.packb(chunk))


def column(**change) -> dict:
    return {"out": [{**good_reply()["out"][0], **change}]}


def ragged(**change) -> dict:
    return {**ragged_reply(), "out": [{**ragged_reply()["out"][0], **change}]}


BAD_REPLIES = {
    "id as number": {"id": 1},
    "worker missing": {"worker": None},
    "count as text": {"n": "3"},
    "count negative": {"n": -1},
    "count too high": {"n": 4},
    "count too low": {"n": 2},
    "count without end": {"n": 2**40},
    "bad row outside": {"bad": [[3, {"code": "row_failed"}]]},
    "bad row twice": {"bad": [[1, {}], [1, {}]]},
    "bad row is no pair": {"bad": [1]},
    "bad row is no map": {"bad": [[1, "x"]]},
    "bad is no list": {"bad": 5},
    "out is no list": {"out": 5},
    "column is no map": {"out": [5]},
    "column of objects": column(t="O"),
    "column of unknown type": column(t="banana"),
    "column of float64": column(t="<f8"),
    "type as number": column(t=1),
    "data as text": column(d="abcdefgh"),
    "data too short": column(d=b"1234"),
    "data not whole": column(d=b"12345"),
    "shape as number": column(s=2),
    "shape negative": column(s=[-1]),
    "shape huge": column(s=[2**62, 2**62]),
    "shape zero with data": column(s=[0]),
    "no shape": column(s=[]),
    "no columns": {"out": []},
    "rows without end and without columns": {"n": 2**40, "out": [], "bad": []},
    "shape as text": column(s=["2"]),
    "lengths negative": ragged(l=I32(4, -1)),
    "lengths too many": ragged(l=I32(1, 1, 1)),
    "lengths short of the data": ragged(l=I32(1, 1)),
    "lengths beyond the data": ragged(l=I32(2, 2)),
    "lengths wrapping around": ragged(l=I32(2**31 - 1, 2**31 - 1)),
    "lengths as list": ragged(l=[2, 1]),
    "times infinite": {"queue_ms": float("inf")},
    "times not a number": {"compute_ms": float("nan")},
    "backlog infinite": {"backlog": float("inf")},
    "backlog as text": {"backlog": "1"},
    "error is no map": {"error": "full"},
    "error is a list": {"error": []},
    "retry is text": {"error": {"code": "overloaded", "retry_after_s": "soon"}},
    "retry not a number": {"error": {"code": "overloaded", "retry_after_s": float("nan")}},
}


@pytest.mark.parametrize("change", BAD_REPLIES.values(), ids=BAD_REPLIES.keys())
def test_a_reply_with_one_wrong_part_is_refused(change):
    with pytest.raises(BadChunkError):
        decode_reply(msgpack.packb({**good_reply(), **change}))


JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=8)
    | st.binary(max_size=24),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4)
    ),
    max_leaves=8,
)


def only_bad_chunk(decode, data: bytes) -> None:
    try:
        decode(data)
    except BadChunkError as error:
        assert error.message


@given(st.binary(max_size=300))
def test_random_bytes_are_a_bad_chunk(data):
    only_bad_chunk(decode_chunk, data)
    only_bad_chunk(decode_reply, data)


@given(JUNK)
def test_any_msgpack_is_a_bad_chunk(junk):
    data = msgpack.packb(junk)
    for decode in (decode_chunk, decode_reply):
        with pytest.raises(BadChunkError):
            decode(data)


@given(st.sampled_from(sorted(good_chunk())), JUNK)
def test_junk_in_any_part_of_a_chunk_is_at_most_a_bad_chunk(key, junk):
    only_bad_chunk(decode_chunk, msgpack.packb({**good_chunk(), key: junk}))


@given(st.sampled_from(["task", "dtypes", "dims", "norm"]), JUNK)
def test_junk_in_the_wanted_output_is_at_most_a_bad_chunk(key, junk):
    chunk = good_chunk()
    only_bad_chunk(decode_chunk, msgpack.packb({**chunk, "out": {**chunk["out"], key: junk}}))


@given(st.sampled_from([*sorted(good_reply()), "error"]), JUNK)
def test_junk_in_any_part_of_a_reply_is_at_most_a_bad_chunk(key, junk):
    only_bad_chunk(decode_reply, msgpack.packb({**good_reply(), key: junk}))


@given(st.sampled_from(["t", "s", "d", "l"]), JUNK, st.booleans())
def test_junk_in_a_column_is_at_most_a_bad_chunk(key, junk, is_ragged):
    reply = ragged_reply() if is_ragged else good_reply()
    changed = {**reply, "out": [{**reply["out"][0], key: junk}]}
    only_bad_chunk(decode_reply, msgpack.packb(changed))


@given(st.sampled_from(["code", "message", "param", "retry_after_s", "detail"]), JUNK)
def test_junk_in_an_error_is_at_most_a_bad_chunk(key, junk):
    error = {"code": "overloaded", "message": "full", "retry_after_s": 1.0, key: junk}
    only_bad_chunk(decode_reply, msgpack.packb({**good_reply(), "error": error}))


@given(CHUNKS, st.data())
def test_a_truncated_chunk_is_a_bad_chunk(chunk, data):
    message = to_bytes(chunk)
    cut = data.draw(st.integers(0, len(message) - 1))
    with pytest.raises(BadChunkError):
        decode_chunk(message[:cut])


@given(CHUNKS, st.data())
def test_a_chunk_with_one_changed_byte_is_at_most_a_bad_chunk(chunk, data):
    message = bytearray(to_bytes(chunk))
    message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
    only_bad_chunk(decode_chunk, bytes(message))


def test_truncated_replies_are_bad_chunks():
    for reply in (good_reply(), ragged_reply()):
        message = msgpack.packb(reply)
        for cut in range(len(message)):
            with pytest.raises(BadChunkError):
                decode_reply(message[:cut])


@pytest.mark.parametrize(
    "data",
    [b"\x91" * 100_000, b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff"],
    ids=["nested 100,000 deep", "4 G items", "4 G pairs", "4 GB of bytes"],
)
def test_claimed_sizes_cost_nothing(data):
    for decode in (decode_chunk, decode_reply):
        with pytest.raises(BadChunkError):
            decode(data)


def test_text_that_is_not_utf8_is_a_bad_chunk():
    message = msgpack.packb(good_chunk()).replace(b"\xa1m", b"\xa1\xff")
    with pytest.raises(BadChunkError, match="utf-8"):
        decode_chunk(message)


def test_the_plain_spec_is_the_default():
    chunk = good_chunk()
    del chunk["out"]
    assert decode_chunk(msgpack.packb(chunk)).output == EMBED
