"""Errors on their way out: bodies, headers, and requests of which only some rows failed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from hedgerow_shared.errors import (
    BadInputError,
    HedgerowError,
    RetryableError,
    RowError,
    to_public,
)
from hedgerow_shared.ragged import Row


class RowsFailedError(RowError):
    """Some rows failed and the caller did not ask for the others alone."""

    def __init__(self, failed: Sequence[tuple[int, HedgerowError]], total: int, field: str) -> None:
        index, first = failed[0]
        super().__init__(
            f"{len(failed)} of {total} failed; the first is {field}[{index}]: {first.message}; "
            "with the header Hedgerow-Partial: true the others are returned",
            param=f"{field}[{index}]",
        )
        self.failed = failed


def check_rows(rows: Sequence[Row], *, partial: bool, field: str = "input") -> None:
    """Raise unless the answer may be given: no row failed, or the caller takes partial ones.

    field: what the rows are called in the request
    """
    failed = [(i, row) for i, row in enumerate(rows) if isinstance(row, HedgerowError)]
    if not failed or (partial and len(failed) < len(rows)):
        return
    if partial and isinstance(failed[0][1], RetryableError):
        raise failed[0][1]
    raise RowsFailedError(failed, len(rows), field)


def row_error(index: int, error: HedgerowError) -> dict[str, Any]:
    """One entry of `errors`."""
    return {"index": index, "code": error.code, "message": error.message}


def headline(error: HedgerowError) -> str:
    """The message that stands alone: the first wrong field, and how many more there are."""
    if not isinstance(error, BadInputError):
        return error.message
    first, more = error.problems[0], len(error.problems) - 1
    where = f"{first.param}: " if first.param else ""
    return f"{where}{first.message}" + (f" (and {more} more, see detail)" if more else "")


def error_body(error: HedgerowError) -> dict[str, Any]:
    """What a caller sees of an error, over HTTP and NATS alike."""
    body = to_public(error)
    body["error"]["message"] = headline(error)
    if isinstance(error, RowsFailedError):
        body["errors"] = [row_error(i, e) for i, e in error.failed]
    return writable(body)


def writable(value: Any) -> Any:
    """The same with lone surrogates escaped: a path or a message may quote what a caller sent,
    and no writer takes half a character."""
    if isinstance(value, str):
        return value if value.isprintable() else value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {writable(k): writable(v) for k, v in value.items()}
    if isinstance(value, list):
        return [writable(v) for v in value]
    return value


def retry_headers(error: HedgerowError) -> Mapping[str, str]:
    """When to come back: whole seconds for everybody, milliseconds for those who read them."""
    if not isinstance(error, RetryableError):
        return {"x-should-retry": "false"} if error.status >= 500 else {}
    return {
        "Retry-After": str(max(1, math.ceil(error.retry_after_s))),
        "retry-after-ms": str(math.ceil(error.retry_after_s * 1e3)),
    }
