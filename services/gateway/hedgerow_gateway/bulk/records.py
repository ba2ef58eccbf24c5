"""What is kept about a job: what it is and whether it takes more. Changed by compare and set."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

from hedgerow_shared.bus.jetstream_kv import Bucket, Entry, SequenceConflictError
from hedgerow_shared.errors import HedgerowError, JobConflictError, StorageError, UnknownJobError
from hedgerow_shared.ragged import DType

State = Literal["open", "closed", "cancelled"]

_TRIES = 8


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One job. All its rows are embedded by the same model, in the same way.

    fingerprint: of the gateway's half of the model, and ":" and the engine's half where workers
        served the model when the job began
    dimensions: 0 = the model's own
    chunk_sequences, chunk_tokens: how its parts are cut, by whichever gateway
    prompt_name, prompt: what is put before each text; null and "" for none
    created_ms: since 1970, by the clock of the gateway that began it
    """

    v: Literal[1] = 1
    job: str
    model: str
    fingerprint: str
    dtype: DType
    dimensions: int
    prompt_name: str | None
    prompt: str
    truncate: str
    chunk_sequences: int = 8
    chunk_tokens: int = 4096
    state: State = "open"
    created_ms: int


_SAME = ("model", "dtype", "dimensions", "prompt", "truncate")


class Jobs:
    """The bucket of jobs."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    async def get(self, job: str) -> Job:
        """Raises UnknownJobError, StorageError."""
        entry = await self._bucket.get(_key(job))
        if entry is None:
            raise UnknownJobError(f"no job {job} here", param="job")
        return _decode(entry)

    async def open(self, wanted: Job) -> Job:
        """The job of this id: the one there is, or `wanted`, which is kept then.

        Raises JobConflictError when it is another one, naming what differs. A job that began when
        nobody knew the engine is bound to the first one that is known.
        """
        entry = await self._bucket.get(_key(wanted.job))
        if entry is None:
            try:
                await self._bucket.put(_key(wanted.job), msgspec.json.encode(wanted))
                return wanted
            except SequenceConflictError:
                return await self._bound(await self.get(wanted.job), wanted)
        return await self._bound(_decode(entry), wanted)

    async def _bound(self, found: Job, wanted: Job) -> Job:
        found = _same(found, wanted)
        if ":" in found.fingerprint or ":" not in wanted.fingerprint:
            return found

        def bind(job: Job) -> Job:
            known = ":" in job.fingerprint
            return job if known else msgspec.structs.replace(job, fingerprint=wanted.fingerprint)

        return _same(await self.change(found.job, bind), wanted)

    async def change(self, job: str, change: Callable[[Job], Job]) -> Job:
        """Apply `change` to the newest version, however often others are faster."""
        for _ in range(_TRIES):
            entry = await self._bucket.get(_key(job))
            if entry is None:
                raise UnknownJobError(f"no job {job} here", param="job")
            before = _decode(entry)
            after = change(before)
            if after == before:
                return before
            try:
                await self._bucket.put(_key(job), msgspec.json.encode(after), entry.revision)
                return after
            except SequenceConflictError:
                continue
        raise StorageError(f"job {job} is changed by many at once")


def _key(job: str) -> str:
    return f"job.{job}"


def _decode(entry: Entry) -> Job:
    try:
        return msgspec.json.decode(entry.value, type=Job)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise HedgerowError(f"the record of this job is not readable: {error}") from None


def _same(found: Job, wanted: Job) -> Job:
    for field in _SAME:
        ours, theirs = getattr(found, field), getattr(wanted, field)
        if ours != theirs:
            refuse_ended(found)
            raise JobConflictError(
                f"job {found.job} exists with {_said(field, ours)}, and this says "
                f"{_said(field, theirs)}: take another job id",
                param=field,
            )
    if not _fits(found.fingerprint, wanted.fingerprint):
        raise JobConflictError(
            f"job {found.job} began with {found.model} of fingerprint {found.fingerprint}, which "
            f"is {wanted.fingerprint} now: vectors of both do not belong together; take another "
            "job id",
            param="fingerprint",
        )
    return found


def refuse_ended(job: Job) -> None:
    """Raise JobConflictError when a job takes no more rows, whatever they are."""
    if job.state == "cancelled":
        raise JobConflictError(f"job {job.job} was cancelled: take another job id")
    if job.state == "closed":
        raise JobConflictError(
            f"job {job.job} takes no more rows: `last` was said; take another job id"
        )


def _said(field: str, value: object) -> str:
    """A setting as the caller wrote it, or did not."""
    return f"{field} {value!r}" if value else f"no {field}"


def _fits(found: str, wanted: str) -> bool:
    """The gateway's halves are equal, and the engine's halves where both are known."""
    ours, theirs = found.partition(":"), wanted.partition(":")
    return ours[0] == theirs[0] and (not ours[2] or not theirs[2] or ours[2] == theirs[2])
