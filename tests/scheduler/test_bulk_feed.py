"""How much the bulk lane asks the stream for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from hedgerow_scheduler.bulk_feed import Feed
from tests.waiting import until

ROOM, CHUNK = 8192, 512


class Stream:
    """One model's consumer: remembers what was asked for, and answers when told to."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.go_on = asyncio.Event()

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def fetch(self, batch: int, *, expires_s: float) -> str:
        del expires_s
        self.asked.append(batch)
        await self.go_on.wait()
        self.go_on.clear()
        return ""


def feed(streams: list[Stream], room: Callable[[], float]) -> Feed:
    pulls: Any = streams
    made = Feed(pulls, room)
    for _ in range(200):
        made.saw(CHUNK)
    return made


@pytest.mark.parametrize("num_models", [1, 2, 4])
async def test_all_models_together_ask_for_no_more_than_there_is_room_for(num_models):
    streams = [Stream() for _ in range(num_models)]
    made = feed(streams, lambda: ROOM)
    await made.start()
    await until(lambda: all(stream.asked for stream in streams))
    assert sum(stream.asked[0] for stream in streams) * CHUNK == ROOM
    await made.stop()


async def test_every_model_may_ask_for_one_chunk_however_small_its_share():
    streams = [Stream() for _ in range(8)]
    made = feed(streams, lambda: CHUNK)
    await made.start()
    await until(lambda: all(stream.asked for stream in streams))
    assert {stream.asked[0] for stream in streams} == {1}
    await made.stop()


async def test_without_room_nothing_is_asked_until_a_turn_made_some():
    stream, room = Stream(), [0.0]
    made = feed([stream], lambda: room[0])
    await made.start()
    await asyncio.sleep(0.05)
    assert stream.asked == []
    room[0] = 4 * CHUNK
    made.look()
    await until(lambda: stream.asked == [4])
    room[0] = 2 * CHUNK
    stream.go_on.set()
    await until(lambda: stream.asked == [4, 2])
    await made.stop()
