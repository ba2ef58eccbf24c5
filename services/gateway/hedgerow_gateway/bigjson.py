"""Large JSON bodies decoded in slices, so that megabytes of text keep no query waiting.

orjson is fast but holds the GIL to the end: 5 MB cost some 5 ms in one go, on any thread. What
makes a body large is one list of texts, so that list is cut at commas and decoded slice by slice.

A cut is a comma behind a quote that no backslash escapes. If that comma was part of a text after
all (the text `,` looks like this), the slice holds an odd number of quotes and does not decode.
Whatever does not decode in slices is decoded whole, which also words its errors.
"""

from __future__ import annotations

import re
import secrets
from typing import Any

import orjson

from hedgerow_gateway.bodies import decode, without_bom
from hedgerow_gateway.giveway import breathe

LARGE_BYTES = 512 * 1024
_SLICE_BYTES = 128 * 1024

# A quote inside JSON text is always escaped, so this can only be a key and the start of its list.
_LIST = re.compile(rb'"(input|documents)"\s*:\s*\[')


async def decode_large(data: bytes) -> dict[str, Any]:
    """Like `bodies.decode(data, "json")`, with the loop free after every slice."""
    data = without_bom(data)
    found = _LIST.search(data)
    body = None if found is None else await _in_slices(data, found[1].decode(), found.end())
    return decode(data, "json") if body is None else body


async def _in_slices(data: bytes, key: str, start: int) -> dict[str, Any] | None:
    """start: of the list's first item. None when this body has to be decoded whole."""
    # What follows the list is decoded together with its last items, under a key of our own: a
    # second list under the same key would otherwise pass for the rest of the first.
    ours = secrets.token_hex(8)
    try:
        before = orjson.loads(data[:start] + b"]}")
        items: list[Any] = []
        while (comma := _comma(data, start + _SLICE_BYTES)) >= 0:
            items += orjson.loads(b"[" + data[start:comma] + b"]")
            start = comma + 1
            await breathe()
        after = orjson.loads(b'{"' + ours.encode() + b'":[' + data[start:])
    except orjson.JSONDecodeError:
        return None
    rest = after.pop(ours, None)
    if not isinstance(rest, list) or key in after or before.get(key) != []:
        return None
    if items and not rest:
        return None  # the last comma had nothing behind it
    return {**before, **after, key: items + rest}


def _comma(data: bytes, near: int) -> int:
    """Position of a comma behind a quote that nothing escapes, at or after `near`; or -1."""
    quote = data.find(b'",', near)
    while quote >= 0:
        slashes = quote
        while slashes > 0 and data[slashes - 1] == 0x5C:
            slashes -= 1
        if (quote - slashes) % 2 == 0:
            return quote + 1
        quote = data.find(b'",', quote + 1)
    return -1
