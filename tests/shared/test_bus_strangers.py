"""Strangers on the bus: garbage in subjects and headers, TLS, logins we cannot use."""

import asyncio
import shutil
import socket
import subprocess
import sys

import pytest

from hedgerow_shared.bus import Bus, BusOptions
from hedgerow_shared.errors import StartupError
from tests.waiting import until

pytestmark = pytest.mark.system

GARBAGE = {
    "vertical tab in the reply": b"PUB %s re\x0bply 2\r\nhi\r\n",
    "carriage return in the reply": b"PUB %s re\rply 2\r\nhi\r\n",
    "a long message behind a form feed": b"PUB %s re\x0cply 6000\r\n" + b"h" * 6000 + b"\r\n",
    "a reply that is not UTF-8": b"PUB %s \xff\xfe 2\r\nhi\r\n",
    "headers of eight bytes": b"HPUB %s 8 10\r\nNATS/1.0hi\r\n",
    "headers that are none": b"HPUB %s 4 6\r\nabcdhi\r\n",
    "headers of a status": b"HPUB %s r 22 22\r\nNATS/1.0 503 \xff\xfe\xfd\xfc\xfb\r\n\r\n\r\n",
}


def send_raw(port: int, command: bytes) -> bytes:
    """Say something no client library would say; returns the server's answer to it."""
    with socket.create_connection(("127.0.0.1", port)) as peer:
        peer.sendall(
            b'CONNECT {"verbose":false,"headers":true,"no_responders":true}\r\n'
            + command
            + b"PING\r\n"
        )
        answer = b""
        while b"PONG" not in answer and b"-ERR" not in answer:
            answer += peer.recv(4096)
    return answer[answer.index(b"\r\n") + 2 :]


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE.keys())
async def test_no_message_of_a_stranger_disturbs_the_connection(
    nats_server, connect, echo, garbage
):
    """Each of these ends nats-py's reader, or its connection and every request on it."""
    subject = "strangers.echo"
    got = []
    worker = await connect(nats_server.url)

    def handler(message) -> None:
        got.append(message.data)
        if message.data == b"wait":
            asyncio.get_running_loop().call_later(
                0.2, worker.publish_nowait, message.reply, b"answered"
            )

    await worker.subscribe(subject, handler)
    await worker.barrier()
    reader = worker.client._reading_task
    caller = await connect(nats_server.url)
    waiting = asyncio.create_task(caller.request(subject, b"wait", timeout_s=5))
    await caller.barrier()
    answer = await asyncio.to_thread(send_raw, nats_server.port, garbage % subject.encode())
    assert answer.startswith(b"PONG"), "the server itself refused it: this case tests nothing"
    assert (await waiting).data == b"answered"
    assert worker.client._reading_task is reader
    assert not reader.done()


@pytest.fixture
def certificate(tmp_path):
    """A self-signed certificate for 127.0.0.1: (certificate, key)."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not here to make a certificate")
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost "
        f"-addext subjectAltName=IP:127.0.0.1 -keyout {key} -out {cert}".split(),
        check=True,
        capture_output=True,
    )
    return cert, key


async def test_tls_with_our_own_authority_works_and_without_it_is_refused_at_once(
    start_nats, certificate
):
    cert, key = certificate
    server = start_nats(extra=f'tls {{ cert_file: "{cert}", key_file: "{key}" }}\n')
    bus = await Bus.connect(BusOptions(server.url, tls_ca=str(cert)))
    await bus.subscribe("echo", lambda m: bus.publish_nowait(m.reply, m.data))
    assert (await bus.request("echo", b"x" * 100_000, timeout_s=5)).data == b"x" * 100_000
    server.kill()
    await until(lambda: not bus.is_connected)
    server.restart()
    await until(lambda: bus.is_connected)
    assert (await bus.request("echo", b"again", timeout_s=5)).data == b"again"
    await bus.close()
    url = server.url.replace("nats://", "tls://")
    with pytest.raises(StartupError, match="certificate"):
        await asyncio.wait_for(Bus.connect(BusOptions(url)), 5)


async def test_a_creds_file_without_its_package_says_what_to_install(
    nats_server, tmp_path, monkeypatch
):
    monkeypatch.setitem(sys.modules, "nkeys", None)
    with pytest.raises(StartupError, match="pip install nkeys"):
        await Bus.connect(BusOptions(nats_server.url, credentials=str(tmp_path / "x.creds")))
