"""The console script as a person meets it: real processes, one line per mistake."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import msgpack
import pytest

from hedgerow_local.machine import look
from hedgerow_local.req import decode, encode, readable
from hedgerow_shared import __version__
from hedgerow_shared.errors import StartupError


def hedgerow(
    *arguments: str, env: dict[str, str] | None = None, code: str = "", stdin: bytes = b""
):
    start = code + "import sys; from hedgerow_local.__main__ import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", start, *arguments],
        capture_output=True,
        input=stdin,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **(env or {})},
    )
    return SimpleNamespace(
        returncode=done.returncode, stdout=done.stdout.decode(), stderr=done.stderr.decode()
    )


BLOCKED = "import sys; sys.modules['typer'] = None; "


def test_the_version_needs_no_extra():
    done = hedgerow("--version", code=BLOCKED)
    assert (done.returncode, done.stdout) == (0, f"hedgerow {__version__}\n")


def test_without_its_extra_the_command_says_what_to_install():
    done = hedgerow("up", code=BLOCKED)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "pip install 'hedgerow[local]'" in done.stderr


@pytest.mark.parametrize("command", [[], ["up"], ["req"], ["top"], ["doctor"]])
def test_every_command_has_help(command):
    done = hedgerow(*command, "--help")
    assert done.returncode == 0
    assert "Usage" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param(["up", "--model", "x=/nope/nope"], "no such folder", id="model"),
        pytest.param(["up", "--max-seq-len", "x=3"], "no --model has the alias", id="length"),
        pytest.param(
            ["req", "a", "{}", "--nats-url", "nats://127.0.0.1:1"], "--nats-url", id="bus"
        ),
        pytest.param(
            ["up", "--nats-url", "nats://127.0.0.1:1", "--model", "x=/nope/nope"],
            "cannot connect to nats://127.0.0.1:1 ",
            id="bus before models",
        ),
        pytest.param(["up", "--dtype", "int8"], "--dtype int8: use auto", id="dtype"),
        pytest.param(["top", "--once", "--nats-url", "nats://127.0.0.1:1"], "cannot", id="top"),
        pytest.param(["up", "--foo"], "--foo", id="unknown flag"),
        pytest.param(["up", "--port", "abc"], "--port abc: ", id="no number"),
        pytest.param(["up", "--threads=x"], "--threads x: ", id="no number after ="),
        pytest.param(["up", "--workers", "0.5"], "--workers 0.5: ", id="no whole number"),
        pytest.param(["up", "more"], "see hedgerow up --help", id="extra argument"),
        pytest.param(["bulk", "x"], "see hedgerow bulk --help", id="missing flag"),
        pytest.param(["bogus"], "'bogus'; see hedgerow --help", id="unknown command"),
        pytest.param(["up", "--data-dir", ""], "--data-dir '': name a folder", id="no data dir"),
        pytest.param(["up", "--max-seq-len", "1", "--max-seq-len", "2"], "one of", id="lengths"),
        pytest.param(["doctor", "--port", "99999"], "--port 99999: a port is", id="doctor"),
        pytest.param(["req", "a", '{"input":"\udcff"}'], "BODY is not UTF-8: byte 0xff", id="utf"),
        pytest.param(
            ["req", "a", '{"dimensions":99999999999999999999999}', "--msgpack"],
            "send it without --msgpack",
            id="beyond msgpack",
        ),
        pytest.param(["req", "a b", "{}"], "SUBJECT 'a b': words joined by", id="subject"),
        pytest.param(["req", "a", "[" * 100_000, "--msgpack"], "nested too deeply", id="deep"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(arguments, words, tmp_path):
    done = hedgerow(*arguments, env={"HEDGEROW_DATA_DIR": str(tmp_path / "d")})
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert words in done.stderr


@pytest.mark.parametrize(
    "flags",
    [
        pytest.param(("--device", "cuda"), id="no card"),
        pytest.param(("--device", "cpu", "--dtype", "float16"), id="float16 on the CPU"),
    ],
)
@pytest.mark.skipif(look().other_gpu, reason="a card that CUDA_VISIBLE_DEVICES does not hide")
def test_what_the_machine_cannot_do_is_refused_before_a_bus_is_started(flags, tmp_path):
    env = {"HEDGEROW_DATA_DIR": str(tmp_path / "d"), "CUDA_VISIBLE_DEVICES": ""}
    done = hedgerow("up", "--port", "0", *flags, env=env)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert not (tmp_path / "d").exists()


def test_a_body_from_stdin_that_is_no_text_is_refused():
    with pytest.raises(StartupError, match="byte 0xff at 1 "):
        decode(b'"\xff"')
    assert decode('"é"'.encode()) == '"é"'
    done = hedgerow("req", "a", "-", stdin=b'{"input":"\xff"}')
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "BODY is not UTF-8" in done.stderr


def test_a_number_in_the_environment_is_one():
    done = hedgerow("up", env={"HEDGEROW_PORT": "abc"})
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "HEDGEROW_PORT=abc: " in done.stderr


def test_without_a_command_the_help_comes():
    done = hedgerow()
    assert done.returncode == 2
    assert "Usage: hedgerow" in done.stderr


@pytest.mark.parametrize(
    ("data", "text"),
    [
        pytest.param(b"PONG", "PONG", id="text"),
        pytest.param(b"1", "1", id="digit"),
        pytest.param(b"", "", id="nothing"),
        pytest.param(b"\x82\x01", "\ufffd\x01", id="cut msgpack"),
        pytest.param(msgpack.packb([1, "a"]), '[1, "a"]', id="list"),
    ],
)
def test_a_reply_of_somebody_else_is_shown_as_it_is(data, text):
    assert readable(SimpleNamespace(data=data)) == text


def test_a_mistake_in_the_environment_is_one_too():
    done = hedgerow("up", env={"HEDGEROW_MODEL": "x=/nope/one,y=/nope/two"})
    assert done.returncode == 2
    assert "x=/nope/one" in done.stderr


def test_a_body_becomes_msgpack_and_a_reply_becomes_json_again():
    assert msgpack.unpackb(encode('{"input": ["a", 1]}')) == {"input": ["a", 1]}
    reply = SimpleNamespace(data=msgpack.packb({"shape": [1, 2], "data": b"\x00\xff"}))
    assert json.loads(readable(reply)) == {"shape": [1, 2], "data": "AP8="}
    assert readable(SimpleNamespace(data=b'{"a":1}')) == '{"a":1}'


def test_a_body_that_is_not_json_is_refused_before_it_is_sent():
    with pytest.raises(StartupError, match="not JSON"):
        encode("{input}")
