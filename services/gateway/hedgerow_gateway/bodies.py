"""Bytes to a body and back: JSON or msgpack, told apart by header or first byte."""

from __future__ import annotations

import codecs
import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import msgpack
import orjson

from hedgerow_shared.errors import BadInputError, Problem

Form = Literal["json", "msgpack"]

CONTENT_TYPES: Mapping[Form, str] = {
    "json": "application/json",
    "msgpack": "application/msgpack",
}
_MSGPACK_TYPES = ("application/msgpack", "application/x-msgpack", "application/vnd.msgpack")
_SURROGATE = re.compile("[\ud800-\udfff]")
MAX_PROBLEMS = 100


def form_of(data: bytes, content_type: str | None) -> Form:
    """The header decides where it names one of the two; otherwise the first byte does.

    A msgpack map begins with 0x80-0x8f, 0xde or 0xdf, which no JSON text does. Anything else
    is taken for JSON, whose reader then says what is wrong.
    """
    kind = (content_type or "").partition(";")[0].strip().lower()
    if kind in _MSGPACK_TYPES:
        return "msgpack"
    if kind == "application/json" or not data:
        return "json"
    first = data[0]
    return "msgpack" if 0x80 <= first <= 0x8F or first in (0xDE, 0xDF) else "json"


def decode(data: bytes, form: Form) -> dict[str, Any]:
    """Read a request body. Raises BadInputError: not readable, not an object, or holding text
    that is no Unicode (lone surrogates), naming each place."""
    body = _from_msgpack(data) if form == "msgpack" else _from_json(data)
    if not isinstance(body, dict):
        raise BadInputError(f"the body must be an object, found {kind_name(body)}")
    return body


def encode(body: Mapping[str, Any], form: Form) -> bytes:
    """Write a small body."""
    if form == "msgpack":
        packed = msgpack.packb(body)
        assert packed is not None, "packb returns bytes unless given a stream"
        return packed
    return orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)


def kind_name(value: Any) -> str:
    """What a caller calls a value: a boolean, a number, text, a list, an object, null, bytes."""
    if value is None:
        return "null"
    names = {bool: "a boolean", int: "a number", float: "a number", str: "text", list: "a list"}
    return names.get(type(value), "bytes" if isinstance(value, bytes) else "an object")


def without_bom(data: bytes) -> bytes:
    """JSON as some Windows programs write it has a byte order mark in front."""
    return data.removeprefix(codecs.BOM_UTF8)


def _from_json(data: bytes) -> Any:
    data = without_bom(data)
    if not data.strip():
        raise BadInputError("the body is empty: send a JSON object")
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        # The strict reader says only that there is a lone surrogate; the lenient one keeps it,
        # so that the message can name the input.
        if "surrogate" in str(error):
            with contextlib.suppress(ValueError, RecursionError):
                _refuse_surrogates(json.loads(data))
        raise BadInputError(f"the body is not readable as JSON: {error}") from None


def _from_msgpack(data: bytes) -> Any:
    try:
        return msgpack.unpackb(data)
    except UnicodeDecodeError:
        with contextlib.suppress(ValueError, TypeError, RecursionError):
            _refuse_surrogates(msgpack.unpackb(data, unicode_errors="surrogatepass"))
        raise BadInputError("the body holds text that is not UTF-8") from None
    except (ValueError, TypeError, msgpack.UnpackException, RecursionError) as error:
        reason = str(error) or type(error).__name__
        raise BadInputError(f"the body is not readable as msgpack: {reason}") from None


def _refuse_surrogates(body: Any) -> None:
    paths = [path for path, text in _texts(body, "") if _SURROGATE.search(text)]
    if paths:
        reason = "holds a lone surrogate (half of a UTF-16 pair), which is no character"
        raise BadInputError([Problem(path or None, reason) for path in paths[:MAX_PROBLEMS]])


def _texts(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, list):
        for i, item in enumerate(value):
            yield from _texts(item, f"{path}[{i}]")
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _texts(item, f"{path}.{key}" if path else str(key))
