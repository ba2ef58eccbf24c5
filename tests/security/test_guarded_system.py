"""Real gateways and workers under the rules: the whole path works, and lends nobody its rights."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import nats as nats_py
import pytest

from hedgerow_shared import subjects
from hedgerow_shared.bus import Bus
from hedgerow_shared.natsserver import free_port
from tests.gateway.conftest import train_wordpiece, write_model
from tests.security.guarded import Guarded

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def services(
    guarded: Guarded, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """A gateway and a fake worker that come in with what a file and the environment say."""
    folder = tmp_path_factory.mktemp("services")
    model = f"toy={write_model(folder / 'toy', train_wordpiece())}"
    settings = folder / "worker.toml"
    keys = {k.removeprefix("HEDGEROW_").lower(): v for k, v in guarded.env("worker").items()}
    settings.write_text("".join(f"{k} = {json.dumps(v)}\n" for k, v in keys.items()))
    clean = {k: v for k, v in os.environ.items() if not k.startswith("HEDGEROW_")}
    common = ["--model", model, "--die-with-parent"]
    commands = {
        "worker": ["hedgerow_scheduler", "--config", str(settings), "--device", "fake"],
        "gateway": ["hedgerow_gateway", "--port", str(free_port())],
    }
    running: dict[str, subprocess.Popen[bytes]] = {}
    for name, command in commands.items():
        env = clean | (guarded.env("gateway") if name == "gateway" else {})
        with (folder / f"{name}.log").open("wb") as log:
            argv = [sys.executable, "-m", *command, *common]
            running[name] = subprocess.Popen(argv, env=env, stdout=log, stderr=log)
    try:
        asyncio.run(_served(guarded, folder, running))
        yield running
    finally:
        for process in running.values():
            process.terminate()
        ends = {name: process.wait(20) for name, process in running.items()}
    log = (folder / "worker.log").read_text() + (folder / "gateway.log").read_text()
    assert ends == {"worker": 0, "gateway": 0}, log
    assert "may not" not in log, "a service was refused something it does"


async def _served(guarded: Guarded, folder: Path, running) -> None:
    bus = await Bus.connect(guarded.options("public"))
    end_s = time.monotonic() + 60
    while time.monotonic() < end_s:
        assert all(p.poll() is None for p in running.values()), logs(folder)
        try:
            reply = await bus.request(subjects.embed("toy"), b'{"input": "x"}', timeout_s=2)
            if b"embedding" in reply.data:
                await bus.close(patience_s=0)
                return
        except Exception:
            await asyncio.sleep(0.1)
    raise AssertionError(logs(folder))


def logs(folder: Path) -> str:
    return "\n".join(file.read_text()[-2000:] for file in folder.glob("*.log"))


def plain(guarded: Guarded) -> dict:
    """What a client that knows nothing of Hedgerow passes to nats-py."""
    options = guarded.options("public")
    secret = {"user": options.user, "password": options.password} if options.user else {}
    return {"inbox_prefix": options.inbox_prefix, "tls": options.ssl_context(), **secret}


async def test_a_plain_client_is_served(guarded, services):
    client = await nats_py.connect(guarded.url, **plain(guarded))
    body = json.dumps({"input": ["one hedge", "two hedges"]}).encode()
    reply = await client.request(subjects.embed("toy"), body, timeout=10)
    assert len(json.loads(reply.data)["data"]) == 2
    assert json.loads((await client.request(subjects.MODELS, b"", timeout=10)).data)["data"]
    await client.close()


async def test_a_bulk_job_runs_from_its_rows_to_its_results(guarded, services):
    """Everything the durable lane does with streams is among what its roles may do."""
    public = await Bus.connect(guarded.options("public"))

    async def ask(subject: str, body: dict) -> dict:
        reply = await public.request(subject, json.dumps(body).encode(), timeout_s=10)
        return json.loads(reply.data)

    rows = [{"id": f"r{i}", "text": f"row {i}"} for i in range(40)]
    body = {"job": "guarded", "rows": rows, "last": True}
    end_s = time.monotonic() + 30
    while "error" in (stored := await ask(subjects.submit_bulk("toy"), body)):
        assert time.monotonic() < end_s, stored
        await asyncio.sleep(0.2)
    while (found := await ask(subjects.job("status", "guarded"), {}))["state"] != "complete":
        assert time.monotonic() < end_s, found
        await asyncio.sleep(0.1)
    page = await ask(subjects.job("results", "guarded"), {})
    assert {row["id"] for row in page["results"]} == {row["id"] for row in rows}
    assert "error" not in await ask(subjects.job("cancel", "guarded"), {})
    await public.close(patience_s=0)


def test_the_command_line_is_served(guarded, services):
    env = {k: v for k, v in os.environ.items() if not k.startswith("HEDGEROW_")}
    if guarded.options("public").user:
        env |= guarded.env("public")
    base = [sys.executable, "-m", "hedgerow_local"]
    req = [*base, "req", subjects.embed("toy"), '{"input": "x"}', "--nats-url", guarded.url]
    done = subprocess.run(req, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["data"]
    top = [*base, "top", "--once", "--nats-url", guarded.url]
    done = subprocess.run(top, env=env, capture_output=True, text=True, timeout=60)
    assert "1 gateway(s), 1 worker(s)" in done.stdout, done.stderr


async def test_a_reply_subject_that_is_no_inbox_is_not_answered(guarded, services):
    """A service may answer wherever a caller says: it must not be talked into other subjects."""
    gateway, worker = [await Bus.connect(guarded.options(r)) for r in ("gateway", "worker")]
    public, heard = await Bus.connect(guarded.options("public")), []
    stolen = subjects.worker_chunk("thief", "toy")
    await worker.subscribe(stolen, heard.append)
    await worker.barrier()
    purge = "$JS.API.STREAM.PURGE.HEDGEROW_BULK"
    for subject in (
        subjects.embed("toy"),
        subjects.MODELS,
        "$SRV.PING",
        "$SRV.INFO.hedgerow",
        "$SRV.STATS.hedgerow",
    ):
        for reply in (stolen, purge, subjects.FLEET):
            await public.publish(subject, b'{"input": "x"}', reply=reply)
    await public.barrier()
    # Answered after all of the above, by the same services.
    await public.request(subjects.embed("toy"), b'{"input": "y"}', timeout_s=10)
    await asyncio.sleep(0.3)
    await worker.barrier()
    assert heard == []
    # The spy hears what may be sent there, so silence above means something.
    await gateway.publish(stolen, b"from a gateway")
    await gateway.barrier()
    await worker.barrier()
    assert [message.data for message in heard] == [b"from a gateway"]
    for bus in (gateway, worker, public):
        await bus.close(patience_s=0)
