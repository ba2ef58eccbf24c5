"""Every failure that may cross the wire, and the code it travels under.

HedgerowError
  ClientError            the request is wrong; sending it again will not help
    BadInputError        400  fields of the request, each with its path
      TooLongError       400  a text longer than the model, and cutting it was not wanted
      TokenIdsError      400  token ids where only text is taken
    BadChunkError        400  an internal chunk whose parts contradict each other
    ForbiddenError       403  the bus user may not publish or listen there
    UnknownModelError    404  no such alias here
    UnknownJobError      404  no such bulk job
    JobConflictError     409  a bulk job of this id exists and is another one, or takes no more
    TooLargeError        413  request or answer beyond a size limit
  RowError               500  one row failed in the engine; its neighbours are fine
  RetryableError         the request is fine; the system was not
    OverloadedError      429  queue full: retry after `retry_after_s`
    NoWorkerError        503  nobody serves that model at the moment
    WorkerLostError      503  the worker that had the work went away
    StorageError         503  what must be kept could not be stored: full, away, or not there
    DeadlineError        504  the answer would have come too late
  CancelledError         499  the caller went away
StartupError             never on the wire: one line for a person, naming the remedy
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with a request: where (`input[3]`), and what was found and how to fix it."""

    param: str | None
    message: str


class HedgerowError(Exception):
    """Root of everything that is answered to a caller."""

    code: ClassVar[str] = "internal_error"
    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param

    @property
    def detail(self) -> list[dict[str, str | None]]:
        """Further problems of the same request; empty when the message says it all."""
        return []


class ClientError(HedgerowError):
    code = "invalid_request"
    status = 400
    type = "invalid_request_error"


class BadInputError(ClientError):
    """One or more fields are wrong. `problems` lists every one of them."""

    code = "invalid_input"

    def __init__(self, problems: Sequence[Problem] | str, *, param: str | None = None) -> None:
        if isinstance(problems, str):
            problems = [Problem(param, problems)]
        assert problems, "an error needs at least one problem"
        first = problems[0]
        super().__init__(first.message, param=first.param)
        self.problems = tuple(problems)

    @property
    def detail(self) -> list[dict[str, str | None]]:
        return [{"param": p.param, "message": p.message} for p in self.problems]


class TooLongError(BadInputError):
    code = "context_length_exceeded"


class TokenIdsError(BadInputError):
    code = "token_ids_not_enabled"


class BadChunkError(ClientError):
    code = "invalid_chunk"


class ForbiddenError(ClientError):
    code = "forbidden"
    status = 403


class UnknownModelError(ClientError):
    code = "model_not_found"
    status = 404


class UnknownJobError(ClientError):
    code = "job_not_found"
    status = 404


class JobConflictError(ClientError):
    code = "job_conflict"
    status = 409


class TooLargeError(ClientError):
    code = "too_large"
    status = 413


class RowError(HedgerowError):
    """A single row failed in the engine (for example: not a finite number)."""

    code = "row_failed"


class RetryableError(HedgerowError):
    code = "unavailable"
    status = 503
    retryable = True

    def __init__(
        self, message: str, *, param: str | None = None, retry_after_s: float = 1.0
    ) -> None:
        super().__init__(message, param=param)
        self.retry_after_s = retry_after_s


class OverloadedError(RetryableError):
    code = "overloaded"
    status = 429
    type = "rate_limit_error"


class NoWorkerError(RetryableError):
    code = "no_worker"


class WorkerLostError(RetryableError):
    code = "worker_lost"


class StorageError(RetryableError):
    code = "storage_unavailable"


class DeadlineError(RetryableError):
    code = "deadline_exceeded"
    status = 504


class CancelledError(HedgerowError):
    code = "cancelled"
    status = 499


class StartupError(Exception):
    """A service cannot start. The text is one line that names what was found and the remedy."""


WIRE_ERRORS: Mapping[str, type[HedgerowError]] = {
    cls.code: cls
    for cls in (
        HedgerowError,
        ClientError,
        BadInputError,
        TooLongError,
        TokenIdsError,
        BadChunkError,
        ForbiddenError,
        UnknownModelError,
        UnknownJobError,
        JobConflictError,
        TooLargeError,
        RowError,
        RetryableError,
        OverloadedError,
        NoWorkerError,
        WorkerLostError,
        StorageError,
        DeadlineError,
        CancelledError,
    )
}


def to_wire(error: HedgerowError) -> dict[str, Any]:
    """Flatten an error for an internal message: code, message, and what its class keeps."""
    body: dict[str, Any] = {"code": error.code, "message": error.message}
    if error.param is not None:
        body["param"] = error.param
    if isinstance(error, RetryableError):
        body["retry_after_s"] = error.retry_after_s
    if isinstance(error, BadInputError) and len(error.problems) > 1:
        body["problems"] = [[p.param, p.message] for p in error.problems]
    return body


def from_wire(body: Any) -> HedgerowError:
    """Rebuild the error that `to_wire` flattened. An unknown code becomes a HedgerowError.

    Raises BadChunkError when it is no such thing.
    """
    if not isinstance(body, Mapping):
        raise BadChunkError("an error must be a map")
    code, param = body.get("code"), body.get("param")
    cls = WIRE_ERRORS.get(code, HedgerowError) if isinstance(code, str) else HedgerowError
    message = str(body.get("message", "unknown error"))
    if param is not None and not isinstance(param, str):
        raise BadChunkError("an error's 'param' must be text")
    if issubclass(cls, RetryableError):
        retry_after_s = body.get("retry_after_s", 1.0)
        if type(retry_after_s) not in (int, float) or not 0 <= retry_after_s < math.inf:
            raise BadChunkError("an error's 'retry_after_s' must be a number from 0 up")
        return cls(message, param=param, retry_after_s=float(retry_after_s))
    if issubclass(cls, BadInputError) and "problems" in body:
        return cls(_problems(body["problems"]))
    return cls(message, param=param)


def _problems(entries: Any) -> list[Problem]:
    try:
        problems = [Problem(param, str(message)) for param, message in entries]
    except (TypeError, ValueError):
        raise BadChunkError("an error's 'problems' must be pairs") from None
    if not problems or any(p.param is not None and not isinstance(p.param, str) for p in problems):
        raise BadChunkError("an error's 'problems' must name parameters")
    return problems


def to_public(error: HedgerowError) -> dict[str, Any]:
    """The body a caller sees, over HTTP and NATS alike (docs/protocol.md, "Errors")."""
    return {
        "error": {
            "message": error.message,
            "type": error.type,
            "param": error.param,
            "code": error.code,
        },
        "detail": error.detail,
    }
