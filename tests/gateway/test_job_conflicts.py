"""A job that is asked for again in another way: the answer says why it cannot be that job."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
import pytest

from hedgerow_gateway.bulk.records import Job, Jobs, refuse_ended
from hedgerow_shared.bus.jetstream_kv import Entry
from hedgerow_shared.errors import JobConflictError

JOB = Job(
    job="j",
    model="m",
    fingerprint="g:e",
    dtype="float32",
    dimensions=2,
    prompt_name=None,
    prompt="",
    truncate="end",
    created_ms=0,
)


@dataclass
class OneJob:
    """A bucket that holds one job."""

    job: Job
    puts: list[bytes] = field(default_factory=list)

    async def get(self, key: str) -> Entry | None:
        return Entry(value=msgspec.json.encode(self.job), revision=1)

    async def put(self, key: str, value: bytes, revision: int = 0) -> None:
        self.puts.append(value)


async def conflict(found: Job, **wanted: object) -> str:
    bucket = OneJob(found)
    with pytest.raises(JobConflictError) as raised:
        await Jobs(bucket).open(msgspec.structs.replace(JOB, **wanted))
    assert not bucket.puts
    return raised.value.message


async def test_what_was_not_said_is_told_as_not_said():
    message = await conflict(JOB, dimensions=0)
    assert message == (
        "job j exists with dimensions 2, and this says no dimensions: take another job id"
    )
    assert "with no prompt, and this says prompt 'query: '" in await conflict(JOB, prompt="query: ")


async def test_a_job_that_ended_says_so_before_it_says_what_differs():
    closed = msgspec.structs.replace(JOB, state="closed")
    assert "`last` was said" in await conflict(closed, dimensions=0)
    cancelled = msgspec.structs.replace(JOB, state="cancelled")
    assert "was cancelled" in await conflict(cancelled, dtype="int8")


async def test_the_same_job_asked_for_again_is_found_even_when_it_takes_no_more():
    closed = msgspec.structs.replace(JOB, state="closed")
    assert await Jobs(OneJob(closed)).open(JOB) == closed
    with pytest.raises(JobConflictError):
        refuse_ended(closed)
    refuse_ended(JOB)
