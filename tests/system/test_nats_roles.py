"""The NATS file for production: a system runs under it, and each role can do only its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import nats
import pytest

from hedgerow_shared.natsserver import find_binary, free_port, greets
from tests.system.up_process import get_status, until

pytestmark = pytest.mark.system

FILE = Path(__file__).parents[2] / "infra" / "nats" / "hedgerow.conf"
ROLES = ("system", "public", "gateway", "worker")


@pytest.fixture(scope="module")
def secured(tmp_path_factory, minilm_folder):
    """(nats url, http url) of a gateway and a worker under the production file."""
    folder = tmp_path_factory.mktemp("secured")
    port, http_port = free_port(), free_port()
    text = FILE.read_text("utf-8").replace("host: 0.0.0.0", "host: 127.0.0.1")
    text = text.replace("port: 4222", f"port: {port}").replace("http_port: 8222", "")
    (folder / "nats.conf").write_text(text)
    passwords = {f"{role.upper()}_PASSWORD": f"{role}-secret" for role in ROLES}
    url = f"nats://127.0.0.1:{port}"

    def service(module: str, role: str, *flags: str) -> list[str]:
        model = ["--model", f"minilm={minilm_folder}", "--nats-url", url, "--nats-user", role]
        secret = ["--nats-password", f"{role}-secret", "--nats-inbox-prefix", f"_INBOX_{role}"]
        return [sys.executable, "-m", module, *model, *secret, *flags]

    log = (folder / "log").open("wb")
    with contextlib.ExitStack() as stack:

        def start(command: list[str], env: dict[str, str]) -> None:
            process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **env})
            stack.callback(process.wait, 40)
            stack.callback(process.terminate)

        server = [str(find_binary()), "-c", str(folder / "nats.conf")]
        start(server, {**passwords, "NATS_STORE": str(folder / "store")})
        until(lambda: greets("127.0.0.1", port), "nats-server")
        start(service("hedgerow_gateway", "gateway", "--port", str(http_port)), {})
        start(service("hedgerow_scheduler", "worker", "--device", "fake"), {})
        http_url = f"http://127.0.0.1:{http_port}"
        try:
            until(lambda: get_status(f"{http_url}/health/ready") == 200, "ready", 60)
        except AssertionError:
            raise AssertionError((folder / "log").read_text()[-3000:]) from None
        yield url, http_url
    log.close()
    assert "ermissions" not in (folder / "log").read_text(), "a service lacked a permission"


async def as_user(url: str, role: str, **more):
    refusals: list[str] = []

    async def on_error(error: Exception) -> None:
        refusals.append(str(error))

    options = {"user": role, "password": f"{role}-secret", "inbox_prefix": f"_INBOX_{role}"}
    client = await nats.connect(url, error_cb=on_error, **{**options, **more})
    return client, refusals


async def refused(refusals: list[str]) -> bool:
    for _ in range(100):
        if any("ermissions" in text for text in refusals):
            return True
        await asyncio.sleep(0.01)
    return False


async def test_the_public_user_gets_answers(secured):
    client, _ = await as_user(secured[0], "public")
    reply = await client.request("hedgerow.v1.embed.minilm", b'{"input": "hello"}', timeout=10)
    assert len(json.loads(reply.data)["data"][0]["embedding"]) == 384
    ping = await client.request("$SRV.PING.hedgerow", b"", timeout=5)
    assert json.loads(ping.data)["name"] == "hedgerow"
    await client.close()


@pytest.mark.parametrize(
    ("role", "subject"),
    [
        pytest.param("public", "hedgerow.chunk.minilm", id="the public may not hand out chunks"),
        pytest.param("public", "hedgerow.worker.abc.drain", id="nor stop workers"),
        pytest.param("public", "$JS.API.STREAM.DELETE.HEDGEROW_BULK", id="nor delete streams"),
        pytest.param("public", "hedgerow.fleet", id="nor announce workers"),
        pytest.param("worker", "hedgerow.v1.embed.minilm", id="a worker asks nobody"),
        pytest.param("worker", "hedgerow.chunk.minilm", id="a worker hands out nothing"),
        pytest.param(
            "worker", "$JS.API.STREAM.DELETE.HEDGEROW_BULK", id="a worker deletes nothing"
        ),
        pytest.param("gateway", "hedgerow.dead.a.b.c", id="a gateway buries nothing"),
    ],
)
async def test_publishing_out_of_role_is_refused(secured, role, subject):
    client, refusals = await as_user(secured[0], role)
    await client.publish(subject, b"{}")
    await client.flush()
    assert await refused(refusals)
    await client.close()


@pytest.mark.parametrize(
    ("role", "subject", "queue"),
    [
        pytest.param("public", "_INBOX_gateway.>", "", id="the public reads no gateway's inbox"),
        pytest.param("public", "hedgerow.chunk.*", "workers", id="nor takes work"),
        pytest.param("public", "hedgerow.v1.>", "", id="nor reads others' texts"),
        pytest.param("worker", "_INBOX_gateway.>", "", id="a worker reads no gateway's inbox"),
        pytest.param("worker", "hedgerow.chunk.*", "", id="a worker cannot copy all the work"),
        pytest.param("worker", "hedgerow.v1.>", "gateways", id="a worker sees no text"),
        pytest.param("gateway", "_INBOX_public.>", "", id="a gateway reads no caller's inbox"),
    ],
)
async def test_listening_out_of_role_is_refused(secured, role, subject, queue):
    client, refusals = await as_user(secured[0], role)
    await client.subscribe(subject, queue=queue)
    await client.flush()
    assert await refused(refusals)
    await client.close()


async def test_nobody_connects_without_a_name(secured):
    with pytest.raises(nats.errors.Error):
        await nats.connect(secured[0], max_reconnect_attempts=0, allow_reconnect=False)
