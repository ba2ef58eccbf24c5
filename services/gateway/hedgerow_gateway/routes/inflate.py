"""Compressed bodies, read here and not by the HTTP library, whose own refusals are plain text."""

from __future__ import annotations

import asyncio
import zlib

from hedgerow_shared.errors import BadInputError, ClientError, TooLargeError

_SLICE_BYTES = 256 * 1024
_GZIP_OR_ZLIB, _RAW = 47, -15
_KNOWN = ("gzip", "x-gzip", "deflate")


class ContentEncodingError(ClientError):
    """A body packed in a way that is not read here."""

    code = "unsupported_encoding"
    status = 415


def check_encoding(header: str | None) -> str:
    """The one encoding of a body, "" for none. Raises ContentEncodingError."""
    found = [name for part in (header or "").split(",") if (name := part.strip().lower())]
    found = [name for name in found if name != "identity"]
    if not found:
        return ""
    if len(found) > 1 or found[0] not in _KNOWN:
        raise ContentEncodingError(
            f"Content-Encoding {', '.join(found)[:80]!r} is not read here: send gzip, deflate or "
            "plain bodies",
            param="Content-Encoding",
        )
    return found[0]


async def inflate(data: bytes, encoding: str, limit: int) -> bytes:
    """Unpack a body, letting others have the loop after every slice.

    Raises BadInputError when it is not packed that way or ends early, and TooLargeError as soon
    as it would have more than `limit` bytes.
    """
    made: list[bytes] = []
    size = 0
    try:
        while data:
            # Some clients say deflate and leave out the header of zlib.
            raw = encoding == "deflate" and data[0] & 0x0F != 8
            unpacker = zlib.decompressobj(_RAW if raw else _GZIP_OR_ZLIB)
            while not unpacker.eof:
                piece = unpacker.decompress(data, _SLICE_BYTES)
                data = unpacker.unconsumed_tail
                made.append(piece)
                size += len(piece)
                if size > limit:
                    raise TooLargeError(
                        f"the body is larger than {limit} bytes unpacked (--max-body-bytes): send "
                        "fewer inputs at a time"
                    )
                if not piece and not data and not unpacker.eof:
                    raise BadInputError(f"the body is not whole: its {encoding} data ends early")
                await asyncio.sleep(0)
            data = unpacker.unused_data
    except zlib.error:
        raise BadInputError(
            f"the body is not {encoding} data, which Content-Encoding says it is"
        ) from None
    return b"".join(made)
