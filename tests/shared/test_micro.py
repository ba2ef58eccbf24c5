"""Service discovery as nats-py's and the CLI's readers expect it (ADR-32)."""

import json
from datetime import datetime

import nats
import pytest

from hedgerow_shared.micro import Endpoint, Micro

pytestmark = pytest.mark.system


@pytest.fixture
async def micro(nats_server, connect):
    """Two services on the bus, and what they would say of themselves."""
    services = []
    for service_id in ("aaaa1111", "bbbb2222"):
        bus = await connect(nats_server.url)
        service = Micro(
            bus,
            service_id=service_id,
            version="0.1.0",
            description="embeddings",
            metadata={"role": "worker", "worker": service_id},
            endpoints=[Endpoint("chunk", "hedgerow.chunk.minilm", "workers", {"model": "minilm"})],
            stats=lambda: {"num_requests": 7, "backlog_tokens": 512},
        )
        await service.start()
        services.append(service)
    yield services
    for service in services:
        await service.stop()


async def ask(bus, subject: str) -> list[dict]:
    replies = await bus.request_many(subject, b"", timeout_s=0.3)
    return sorted((json.loads(r.data) for r in replies), key=lambda a: a["id"])


@pytest.mark.parametrize("verb", ["PING", "INFO", "STATS"])
async def test_each_verb_reaches_all_all_of_the_name_and_one(micro, nats_server, connect, verb):
    bus = await connect(nats_server.url)
    for suffix in ("", ".hedgerow"):
        answers = await ask(bus, f"$SRV.{verb}{suffix}")
        assert [a["id"] for a in answers] == ["aaaa1111", "bbbb2222"]
    (answer,) = await ask(bus, f"$SRV.{verb}.hedgerow.bbbb2222")
    assert answer["type"] == f"io.nats.micro.v1.{verb.lower()}_response"
    assert (answer["name"], answer["version"]) == ("hedgerow", "0.1.0")
    assert answer["metadata"] == {"role": "worker", "worker": "bbbb2222"}


async def test_info_and_stats_describe_the_endpoints(micro, nats_server, connect):
    bus = await connect(nats_server.url)
    (info,) = await ask(bus, "$SRV.INFO.hedgerow.aaaa1111")
    assert info["description"] == "embeddings"
    assert info["endpoints"] == [
        {
            "name": "chunk",
            "subject": "hedgerow.chunk.minilm",
            "queue_group": "workers",
            "metadata": {"model": "minilm"},
        }
    ]
    (stats,) = await ask(bus, "$SRV.STATS.hedgerow.aaaa1111")
    (endpoint,) = stats["endpoints"]
    assert endpoint["num_requests"] == 7
    assert endpoint["data"] == {"num_requests": 7, "backlog_tokens": 512}
    assert datetime.fromisoformat(stats["started"]).tzinfo is not None


async def test_a_client_that_knows_nothing_of_us_reads_the_answers(micro, nats_server):
    """nats-py's own types are the oracle of the format."""
    from nats.micro.service import ServiceInfo, ServicePing, ServiceStats

    client = await nats.connect(nats_server.url)
    for verb, kind in (("PING", ServicePing), ("INFO", ServiceInfo), ("STATS", ServiceStats)):
        reply = await client.request(f"$SRV.{verb}.hedgerow.aaaa1111", b"", timeout=2)
        parsed = kind.from_dict(json.loads(reply.data))
        assert (parsed.name, parsed.id) == ("hedgerow", "aaaa1111")
        assert reply.headers is None
    await client.close()


async def test_metadata_of_the_moment_is_told(micro, nats_server, connect):
    bus = await connect(nats_server.url)
    micro[0].metadata = {"role": "gateway"}
    (info,) = await ask(bus, "$SRV.INFO.hedgerow.aaaa1111")
    assert info["metadata"] == {"role": "gateway"}


async def test_a_stopped_service_is_not_found(micro, nats_server, connect):
    bus = await connect(nats_server.url)
    await micro[0].stop()
    assert [a["id"] for a in await ask(bus, "$SRV.PING")] == ["bbbb2222"]


async def test_stats_that_fail_or_do_not_fit_cost_one_answer_only(nats_server, connect):
    bus = await connect(nats_server.url)
    broken = {"on": True}

    def stats() -> dict:
        if broken["on"]:
            raise RuntimeError("bug")
        return {"big": "x" * 2_000_000}

    service = Micro(
        bus, service_id="c", version="1.0.0", endpoints=[Endpoint("e", "e", "q")], stats=stats
    )
    await service.start()
    asker = await connect(nats_server.url)
    assert await ask(asker, "$SRV.STATS.hedgerow.c") == []
    broken["on"] = False
    assert await ask(asker, "$SRV.STATS.hedgerow.c") == []
    assert len(await ask(asker, "$SRV.PING.hedgerow.c")) == 1
    await service.stop()
