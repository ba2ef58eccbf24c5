"""`hedgerow bulk`: a file in, its vectors out, and on from where it was stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.bulk.bulk_stack import MODEL, Stack, assert_right, rows, vector

pytestmark = pytest.mark.system


def command(stack: Stack, file: Path, out: Path, *flags: str) -> subprocess.Popen[str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith("HEDGEROW_")}
    argv = [sys.executable, "-m", "hedgerow_local", "bulk", str(file), "--out", str(out)]
    argv += ["--model", MODEL, "--nats-url", stack.url, *flags]
    return subprocess.Popen(
        argv,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=env,
        cwd=stack.folder,
        preexec_fn=_mind_sigint,
    )


def _mind_sigint() -> None:
    """Whoever runs the tests in the background of a shell hands down that it is ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def write(file: Path, sent: list[dict]) -> Path:
    file.write_text("".join(json.dumps(row) + "\n" for row in sent))
    return file


def read(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_a_file_becomes_vectors_and_a_stopped_command_goes_on(make_stack, tmp_path):
    stack = make_stack()
    stack.gateway("g0")
    stack.worker("w0", "--fake-floor-ms", "40")
    stack.ready()
    sent = rows(3000)
    file, out = write(tmp_path / "in.jsonl", sent), tmp_path / "out.jsonl"
    first = command(stack, file, out)
    note = tmp_path / "out.jsonl.state"
    stack.until(lambda: note.exists() and json.loads(note.read_text())["good"] > 200, "it writes")
    first.send_signal(signal.SIGINT)
    _, err = first.communicate(timeout=20)
    assert (first.returncode, out.exists()) == (130, False), err
    assert "goes on" in err
    written = json.loads(note.read_text())["good"]
    again = command(stack, file, out)
    said, err = again.communicate(timeout=60)
    assert again.returncode == 0, err
    assert said.startswith("3000 vectors in ")
    assert 200 < written < 3000
    assert_right(read(out), sent)
    assert sorted(p.name for p in tmp_path.glob("out.jsonl*")) == ["out.jsonl"]


def test_vectors_can_be_arrays_of_another_type(make_stack, tmp_path):
    stack = make_stack()
    stack.gateway("g0")
    stack.worker("w0")
    stack.ready()
    sent = [{"name": i, "body": row["text"]} for i, row in enumerate(rows(20))]
    file, out = write(tmp_path / "in.jsonl", sent), tmp_path / "out.npz"
    flags = ("--id-field", "name", "--text-field", "body", "--dtype", "int8")
    run = command(stack, file, out, *flags)
    _, err = run.communicate(timeout=60)
    assert run.returncode == 0, err
    found = np.load(out)
    assert sorted(found["ids"].tolist()) == list(range(20))
    for name, got in zip(found["ids"].tolist(), found["vectors"], strict=True):
        assert np.array_equal(got, np.round(vector(sent[name]["body"]) * 127).astype(np.int8))


def test_what_cannot_work_is_one_line_and_status_2(make_stack, tmp_path):
    stack = make_stack()
    stack.gateway("g0")
    stack.ready("/health/live")
    file = tmp_path / "in.jsonl"
    for text, flags, said in (
        ('{"id": 1, "text": "w1"}\nnot json\n', (), "line 2: not JSON"),
        ('{"id": 1, "body": "w1"}\n', (), "--text-field"),
        ('{"id": 1, "text": "w1"}\n', ("--dtype", "int4"), "must be one of float32"),
    ):
        file.write_text(text)
        run = command(stack, file, tmp_path / "out.jsonl", *flags)
        _, err = run.communicate(timeout=30)
        assert run.returncode == 2, err
        assert said in err and len(err.strip().splitlines()[-1:]) == 1
    missing = command(stack, tmp_path / "none.jsonl", tmp_path / "out.jsonl")
    assert "no such file" in missing.communicate(timeout=30)[1]
    assert missing.returncode == 2
