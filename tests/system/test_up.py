"""The first five minutes: start, paste what was printed, stop; and the mistakes people make."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from hedgerow_shared.natsserver import free_port
from tests.system.up_process import Up, exists, get_status, until

pytestmark = pytest.mark.system

FAKE = ("--device", "fake")
HELLO = "7592"  # the token id of "hello" in the default model


def shell(command: str, up: Up) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, env=up.env, timeout=60
    )


def test_what_it_prints_works_when_pasted_and_ctrl_c_leaves_nothing(start_up):
    up = start_up()
    assert "ready" in up.stdout[0]
    assert up.http_url in up.stdout[0]
    assert up.nats_url in up.stdout[0]

    curl = shell(up.banner("http"), up)
    assert curl.returncode == 0
    over_http = json.loads(curl.stdout)["data"][0]["embedding"]
    assert len(over_http) == 384
    assert sum(x * x for x in over_http) == pytest.approx(1.0, abs=1e-3)

    nats = shell(up.banner("nats"), up)
    assert nats.returncode == 0, nats.stderr
    assert json.loads(nats.stdout)["data"][0]["embedding"] == pytest.approx(over_http, abs=1e-5)

    children = up.children()
    assert sum("hedgerow_scheduler" in line for line in children.values()) >= 1
    up.interrupt()
    assert up.wait_ended() == 0, up.log()
    assert "Traceback" not in up.log()
    assert not [pid for pid in children if exists(pid)]


def test_sigterm_drains_as_ctrl_c_does(start_up):
    up = start_up(*FAKE)
    children = up.children()
    up.process.terminate()
    assert up.wait_ended() == 0
    assert not [pid for pid in children if exists(pid)]


def test_a_request_that_was_accepted_is_answered_before_it_stops(start_up):
    up = start_up(*FAKE, "--workers", "1", env={"HEDGEROW_FAKE_FLOOR_MS": "900"})
    with socket.create_connection(up.http_url.removeprefix("http://").split(":")) as caller:
        body = b'{"input": "slow"}'
        head = f"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        caller.sendall(head.encode() + body)
        time.sleep(0.3)
        up.interrupt()
        caller.settimeout(30)
        assert caller.recv(100).startswith(b"HTTP/1.1 200")
    assert up.wait_ended() == 0


def test_a_second_ctrl_c_does_not_wait(start_up):
    up = start_up(*FAKE, "--workers", "1", env={"HEDGEROW_FAKE_HANG_ID": HELLO})
    caller = socket.create_connection(up.http_url.removeprefix("http://").split(":"))
    body = b'{"input": "hello"}'
    head = f"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    caller.sendall(head.encode() + body)
    time.sleep(0.5)
    children = up.children()
    up.interrupt()
    time.sleep(1.0)
    assert up.process.poll() is None, "it waits for the request"
    begin = time.monotonic()
    up.interrupt()
    up.wait_ended()
    assert time.monotonic() - begin < 5.0
    assert not [pid for pid in children if exists(pid)]
    caller.close()


def test_killing_up_itself_leaves_no_orphans(start_up):
    up = start_up(*FAKE)
    children = up.children()
    assert len(children) >= 3
    up.process.kill()
    up.wait_ended()
    until(lambda: not [pid for pid in children if exists(pid)], "children are gone", 10)


def test_ctrl_c_while_it_starts_leaves_nothing(start_up):
    up = start_up(ready=False)
    until(lambda: len(up.children()) >= 3, "it has started them")
    children = up.children()
    up.interrupt()
    assert up.wait_ended() == 0
    assert not [pid for pid in children if exists(pid)]


def refused(up: Up) -> str:
    """The one line it ended with."""
    assert up.wait_ended() == 2, up.log()
    assert up.stdout == []
    assert "Traceback" not in up.log()
    assert len(up.stderr) == 1, up.log()
    return up.stderr[0]


def test_a_busy_port_is_one_line_with_the_remedy(start_up):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        line = refused(start_up(*FAKE, "--port", str(port), ready=False))
    assert f"port {port} is taken" in line
    assert f"pid {os.getpid()}" in line
    assert "--port" in line


def test_missing_weights_are_one_line_with_the_remedy(start_up, tmp_path, minilm_folder):
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("config.json", "tokenizer.json"):
        (bare / name).write_bytes((minilm_folder / name).read_bytes())
    up = start_up("--model", f"m={bare}", "--workers", "3", ready=False)
    assert up.wait_ended() == 2, up.log()
    assert "Traceback" not in up.log()
    assert "safetensors" in up.stderr[-1]
    assert sum("safetensors" in line for line in up.stderr) == 1


def test_a_model_that_is_nowhere_is_one_line(start_up):
    line = refused(start_up("--model", "m=./no/such/folder", ready=False))
    assert "no such folder" in line


def test_two_of_them_cannot_share_a_data_folder(start_up, tmp_path):
    first = start_up(*FAKE, "--data-dir", str(tmp_path / "shared"))
    line = refused(start_up(*FAKE, "--data-dir", str(tmp_path / "shared"), ready=False))
    assert f"pid {first.process.pid}" in line
    assert first.embed() == 200


def test_it_joins_a_nats_server_that_runs_already(start_up, start_nats):
    server = start_nats()
    up = start_up(*FAKE, "--nats-port", "0", "--nats-url", server.url)
    assert up.nats_url == server.url
    assert not up.pids("nats-server")
    assert up.embed() == 200


def test_a_reader_of_its_output_that_goes_away_does_not_stop_it(tmp_path):
    port = free_port()
    command = [sys.executable, "-m", "hedgerow_local", "up", *FAKE, "--workers", "1"]
    command += ["--port", str(port), "--nats-port", str(free_port())]
    reader, writer = os.pipe()
    process = subprocess.Popen(
        [*command, "--data-dir", str(tmp_path)], stdout=writer, stderr=writer
    )
    os.close(writer)
    os.close(reader)
    try:
        until(lambda: get_status(f"http://127.0.0.1:{port}/health/ready") == 200, "ready")
        time.sleep(1.0)
        assert get_status(f"http://127.0.0.1:{port}/v1/models") == 200
    finally:
        process.terminate()
        assert process.wait(40) == 0


def test_top_and_doctor_see_the_running_system(start_up):
    up = start_up(*FAKE, "--workers", "2")
    assert up.embed() == 200
    table = shell(f"hedgerow top --once --nats-url {up.nats_url}", up).stdout
    assert table.count("worker") >= 2
    assert "gateway" in table
    doctor = shell(f"hedgerow doctor --nats-url {up.nats_url} --port 0", up)
    assert "messages up to 1024 KiB" in doctor.stdout


def test_several_gateways_share_the_port(start_up):
    up = start_up(*FAKE, "--gateways", "2", "--workers", "1")
    assert len(up.pids("hedgerow_gateway")) == 2
    assert {up.embed(f"text {i}") for i in range(20)} == {200}
    os.kill(up.pids("hedgerow_gateway")[0], signal.SIGKILL)
    until(lambda: up.embed() == 200, "the other one serves", 5)
    until(lambda: len(up.pids("hedgerow_gateway")) == 2, "it is back")


def test_together_every_worker_is_a_gateway_too(start_up):
    up = start_up(*FAKE, "--together", "--workers", "2")
    assert len(up.pids("hedgerow_together")) == 2
    assert not up.pids("hedgerow_gateway") and not up.pids("hedgerow_scheduler")
    assert "one in each worker" in "\n".join(up.stdout)
    assert {up.embed(f"text {i}") for i in range(20)} == {200}
    os.kill(up.pids("hedgerow_together")[0], signal.SIGKILL)
    until(lambda: len(up.pids("hedgerow_together")) == 2, "it is back")
    until(lambda: up.embed() == 200, "it serves")
