"""Decoding in slices is decoding: same bodies, same refusals, and the loop stays free."""

from __future__ import annotations

import asyncio
import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow_gateway import bigjson
from hedgerow_gateway.bigjson import decode_large
from hedgerow_gateway.bodies import decode
from hedgerow_shared.errors import BadInputError

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.just("input"), inner),
    max_leaves=20,
)
TEXTS = st.lists(st.text(), min_size=1)


@settings(deadline=None)
@given(
    st.dictionaries(st.sampled_from(["input", "documents", "model", "x"]), VALUES | TEXTS),
    st.booleans(),
    st.sampled_from([None, 1]),
)
def test_slices_give_the_same_body_as_the_whole(body, ascii_only, indent):
    data = json.dumps(body, ensure_ascii=ascii_only, indent=indent).encode("utf-8", "surrogatepass")
    small, bigjson._SLICE_BYTES = bigjson._SLICE_BYTES, 8
    try:
        assert asyncio.run(decode_large(data)) == decode(data, "json")
    finally:
        bigjson._SLICE_BYTES = small


@pytest.mark.parametrize(
    "data",
    [
        b'{"input": ["a", "b"], "input": "c"}',
        b'{"x": {"input": ["a"]}, "input": ["b"]}',
        b'{"x": {"input": ["a"]}, "input": "b"}',
        b'{"input": ["a", 1, "b"]}',
        b'{"x": "\\"input\\": [\\"no\\"", "input": ["yes, really \\\\", "\\"]"]}',
        b'{"input": ["a"], "documents": ["b"]}',
        b'{"input": [ "a" , "b" ] , "model":"m"}',
        b'{"input": ["a", "b"], "x": 1, "input": ["c"]}',
        b'{"input": ["a", "b"], "x": 1, "\\u0069nput": ["c"]}',
        b'{"input": ["a", ",", "b", ",,", "\\",", "c"]}',
        b'{"input": [["a", "b"], ["c"]]}',
        b'{"input": [{"text": "a", "title": "b"}, {"text": "c"}]}',
        b'{"input": []}',
    ],
    ids=[
        "twice",
        "inner",
        "inner-only",
        "mixed",
        "quoted",
        "both",
        "spaces",
        "two-lists",
        "two-spellings",
        "commas",
        "lists",
        "objects",
        "empty",
    ],
)
@pytest.mark.parametrize("size", [1, 5, 9, 1000])
async def test_odd_bodies_are_read_like_any_other(data, size, monkeypatch):
    monkeypatch.setattr(bigjson, "_SLICE_BYTES", size)
    assert await decode_large(data) == decode(data, "json")


@pytest.mark.parametrize(
    "data",
    [
        b'{"input": ["a", "b"',
        b'{"input": ["a", "b]}',
        b'{"input": ["a" "b"]}',
        b'{"input": ["a",]}',
        b'{"input": ["\\ud800"]}',
        b'{"input": ["a"]} trailing',
        b'["input": ["a"]]',
        b'{"input": ["\x01"]}',
        b'{"input": ["\\q"]}',
    ],
)
@pytest.mark.parametrize("size", [1, 1000])
async def test_wrong_bodies_are_refused_like_any_other(data, size, monkeypatch):
    monkeypatch.setattr(bigjson, "_SLICE_BYTES", size)
    with pytest.raises(BadInputError) as whole:
        decode(data, "json")
    with pytest.raises(BadInputError) as sliced:
        await decode_large(data)
    assert sliced.value.problems == whole.value.problems


async def test_the_loop_is_free_between_slices():
    data = json.dumps({"input": ["some words of a document " * 40] * 8000}).encode()
    turns = 0

    async def tick():
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    ticking = asyncio.create_task(tick())
    began = time.perf_counter()
    body = await decode_large(data)
    assert len(body["input"]) == 8000
    assert turns > len(data) / bigjson._SLICE_BYTES / 2, time.perf_counter() - began
    ticking.cancel()
