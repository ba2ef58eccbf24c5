"""What an autoscaler needs is in a gateway's /metrics: what waits, and since when."""

from __future__ import annotations

import asyncio
import time

import pytest

from hedgerow_shared import subjects
from hedgerow_shared.bus import Bus, BusOptions
from hedgerow_shared.ragged import Lane, RaggedBatch
from hedgerow_shared.wire import Chunk, decode_reply, encode_chunk

pytestmark = pytest.mark.system

LANES = {Lane.QUERY: "query", Lane.RERANK: "rerank", Lane.BULK: "bulk"}


async def test_waiting_tokens_and_their_age_are_shown_by_worker_model_and_lane(rig):
    # 64 tokens take 400 ms, so 30 chunks of 64 are 12 s of work.
    device = ("--fake-ms", "25600", "--worker-id", "w1", "--budget-tokens", "64")
    passes = ("--bulk-pass-tokens", "64", "--bulk-pass-busy-tokens", "64", "--fill", "off")
    system = rig(workers=((*device, *passes),), gateways=(("--fleet-poll-s", "0.2"),))
    bus = await Bus.connect(BusOptions(system.nats.url))

    def shown(name: str, lane: Lane) -> float:
        return system.metric(f"hedgerow_lane_{name}", worker="w1", model="toy", lane=LANES[lane])

    async def send(lane: Lane, number: int) -> str:
        chunk = Chunk(f"{lane.name}{number}", "toy", lane, 4000.0, RaggedBatch.of([[9] * 64]))
        reply = await bus.request(subjects.chunk("toy"), encode_chunk(chunk), timeout_s=30)
        answer = decode_reply(reply.data)
        return answer.error.code if answer.error else "ok"

    began_s = time.monotonic()
    asked = [asyncio.create_task(send(lane, i)) for lane in LANES for i in range(10)]
    await asyncio.sleep(2.0)
    for lane in LANES:
        waiting = await asyncio.to_thread(shown, "backlog_tokens", lane)
        assert waiting % 64 == 0 and 64 <= waiting <= 640, LANES[lane]
        age_s = await asyncio.to_thread(shown, "oldest_s", lane)
        assert 0.5 <= age_s <= time.monotonic() - began_s, LANES[lane]
    total = await asyncio.to_thread(system.metric, "hedgerow_worker_backlog_tokens")
    assert total >= 3 * 64
    # Everything is answered: what could not be done in its 4 s says so.
    assert set(await asyncio.gather(*asked)) == {"ok", "deadline_exceeded"}
    await asyncio.sleep(1.5)
    for lane in LANES:
        assert await asyncio.to_thread(shown, "backlog_tokens", lane) == 0
        assert await asyncio.to_thread(shown, "oldest_s", lane) == 0
    await bus.close(patience_s=0)
