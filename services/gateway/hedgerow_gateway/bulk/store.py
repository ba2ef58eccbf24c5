"""A part into the stream: many chunks at once, and nothing is said to be stored that is not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from hedgerow_gateway.bulk.parts import Part
from hedgerow_shared import subjects
from hedgerow_shared.bus.jetstream import JetStream, PubAck, SequenceConflictError
from hedgerow_shared.jobs import Tally

_IN_FLIGHT = 64
_PER_TURN = 4


async def store_chunks(js: JetStream, part: Part) -> int:
    """Store every chunk of a part; returns how many of them were there before.

    Raises what kept the first one that could not be stored from it. The others may be stored
    then: sending the part again stores the rest.
    """
    subject = subjects.bulk(part.model, part.job)

    def job(name: str, data: bytes, counts: Tally) -> Callable[[], Awaitable[PubAck]]:
        return lambda: js.publish(
            subject, data, msg_id=f"{part.job}.{name}", headers=counts.headers
        )

    acks = await in_flight(job(*chunk) for chunk in part.chunks())
    return sum(ack.duplicate for ack in acks)


async def store_receipt(js: JetStream, part: Part) -> bool:
    """Note that a part is stored completely; False when that was noted before."""
    try:
        await js.publish(
            subjects.receipt(part.job, part.key), b"", expect_last=0, headers=part.tally.headers
        )
    except SequenceConflictError:
        return False
    return True


async def has_receipt(js: JetStream, part: Part) -> bool:
    found = await js.last_direct(subjects.STREAM_RESULT, subjects.receipt(part.job, part.key))
    return found is not None


async def in_flight(
    jobs: Iterable[Callable[[], Awaitable[PubAck]]], width: int = _IN_FLIGHT
) -> list[PubAck]:
    """Run all, at most `width` at once; the first failure ends the rest and is raised."""
    running: set[asyncio.Task[PubAck]] = set()
    acks: list[PubAck] = []
    try:
        for count, job in enumerate(jobs, 1):
            running.add(asyncio.ensure_future(job()))
            if count % _PER_TURN == 0:
                # Making hundreds of chunks in one go would keep queries waiting.
                await asyncio.sleep(0)
            while len(running) >= width:
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                acks += [task.result() for task in done]
        while running:
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_EXCEPTION)
            acks += [task.result() for task in done]
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    return acks
