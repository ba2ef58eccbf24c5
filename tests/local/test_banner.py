from __future__ import annotations

import json
import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest

from hedgerow_local import banner
from hedgerow_local.machine import Machine
from hedgerow_local.options import ServedModel, UpOptions

CARD = SimpleNamespace(folder=Path("/m"), dimension=384, max_seq_len=256, num_labels=0)
MACHINE = Machine(cores=2, cpu_feature="avx2", gpus=0, torch="", llvmlite="0.50.0")


def lines(options: UpOptions, alias: str = "minilm", nats_url: str = "nats://127.0.0.1:4222"):
    return banner.text(
        options,
        MACHINE,
        [ServedModel(alias, CARD)],  # type: ignore[arg-type]
        http_url="http://127.0.0.1:9000",
        nats_url=nats_url,
        why_port="port 4222 is taken" if "4222" not in nats_url else "",
        engines=["minilm: native, bfloat16"],
        took_s=1.25,
    ).splitlines()


def words(all_lines: list[str], label: str) -> list[str]:
    line = next(line for line in all_lines if line.split()[0] == label)
    return shlex.split(line)[1:]


def test_the_first_line_says_ready_and_where():
    first = lines(UpOptions())[0]
    assert "ready" in first
    assert "http://127.0.0.1:9000" in first
    assert "nats://127.0.0.1:4222" in first


@pytest.mark.parametrize("alias", ["minilm", 'it\'s "quoted" $HOME'])
def test_the_curl_is_a_shell_command_with_the_right_body(alias):
    command = words(lines(UpOptions(), alias), "http")
    assert command[0] == "curl"
    assert "http://127.0.0.1:9000/v1/embeddings" in command
    assert json.loads(command[command.index("-d") + 1]) == {"model": alias, "input": "hello"}


def test_the_request_names_the_bus_only_where_it_is_not_the_usual_one():
    usual, odd = lines(UpOptions()), lines(UpOptions(), nats_url="nats://127.0.0.1:4999")
    assert "--nats-url" not in words(usual, "nats")
    assert words(odd, "nats")[-2:] == ["--nats-url", "nats://127.0.0.1:4999"]
    assert any("because port 4222 is taken" in line for line in odd)


def test_what_was_chosen_is_said_with_the_reason():
    text = "\n".join(lines(UpOptions()))
    assert "workers  2 (one per core (2))" in text
    assert "threads  1 per worker" in text
    assert "384 dimensions, up to 256 tokens" in text
    assert "device   CPU with avx2 (no NVIDIA device)" in text
    assert "engine   minilm: native, bfloat16" in text


def test_listening_to_everybody_is_warned_about():
    assert any("no login" in line for line in lines(UpOptions(host="0.0.0.0")))
    assert not any("no login" in line for line in lines(UpOptions()))


def test_the_command_can_be_pasted_from_where_the_person_stands(tmp_path, monkeypatch):
    program = tmp_path / "venv" / "bin" / "hedgerow"
    program.parent.mkdir(parents=True)
    program.touch()
    monkeypatch.setattr("sys.argv", [str(program)])
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.chdir(tmp_path)
    assert banner.command() == "venv/bin/hedgerow"
    monkeypatch.chdir("/")
    assert Path(banner.command()).resolve() == program.resolve()
