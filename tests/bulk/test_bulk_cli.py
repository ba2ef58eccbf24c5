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
        assert said in err and len(err.splitlines()) == 1
        assert sorted(p.name for p in tmp_path.glob("out*")) == []
    missing = command(stack, tmp_path / "none.jsonl", tmp_path / "out.jsonl")
    assert "no such file" in missing.communicate(timeout=30)[1]
    assert missing.returncode == 2


def done(run: subprocess.Popen[str], timeout: float = 60) -> tuple[int, str, str]:
    """(exit status, stdout, stderr) of a command that ends by itself."""
    out, err = run.communicate(timeout=timeout)
    return run.returncode, out, err


def serving(make_stack, *flags: str) -> Stack:
    stack = make_stack()
    stack.gateway("g0")
    stack.worker("w0", *flags)
    stack.ready()
    return stack


def interrupted(stack: Stack, file: Path, out: Path, *flags: str) -> None:
    """A command that was killed after it had written some results."""
    run = command(stack, file, out, *flags)
    note = out.with_name(out.name + ".state")
    stack.until(lambda: note.exists() and json.loads(note.read_text())["good"] > 100, "it writes")
    run.kill()
    run.communicate(timeout=20)


def test_a_finished_command_said_again_computes_again_wherever_it_writes(make_stack, tmp_path):
    stack, sent = serving(make_stack), rows(300)
    file, out = write(tmp_path / "in.jsonl", sent), tmp_path / "out.jsonl"
    jobs = set()
    for place in (out, out, tmp_path / "other.jsonl"):
        status, said, err = done(command(stack, file, place))
        assert status == 0, err
        assert said.startswith("300 vectors in ")
        assert_right(read(place), sent)
        jobs.add(said.rpartition("(job ")[2])
    assert len(jobs) == 3


def test_a_job_with_a_name_is_not_fetched_twice_and_its_output_stays(make_stack, tmp_path):
    stack, sent = serving(make_stack), rows(20)
    file, out = write(tmp_path / "in.jsonl", sent), tmp_path / "out.jsonl"
    assert done(command(stack, file, out, "--job", "mine"))[0] == 0
    before = out.read_bytes()
    for place in (out, tmp_path / "other.jsonl"):
        status, _, err = done(command(stack, file, place, "--job", "mine"))
        assert status == 2
        assert "--job mine exists already (complete, 20 done, 0 failed)" in err
        assert "--job with another name" in err
    assert out.read_bytes() == before
    assert sorted(p.name for p in tmp_path.glob("o*.jsonl*")) == ["out.jsonl"]


def test_results_that_were_lost_are_said_to_be_and_nothing_is_replaced(make_stack, tmp_path):
    stack, sent = serving(make_stack, "--fake-floor-ms", "40"), rows(2000)
    file, out = write(tmp_path / "in.jsonl", sent), tmp_path / "out.jsonl"
    out.write_text("older\n")
    interrupted(stack, file, out)
    part, note = tmp_path / "out.jsonl.part", tmp_path / "out.jsonl.state"
    part.unlink()
    status, _, err = done(command(stack, file, out))
    assert status == 2
    assert f"{part}: lost or cut" in err
    assert f"remove {note}" in err
    assert out.read_text() == "older\n"
    note.unlink()
    status, _, err = done(command(stack, file, out))
    assert status == 0, err
    assert_right(read(out), sent)


def test_a_mistake_in_the_flags_does_not_cost_what_was_collected(make_stack, tmp_path):
    stack, sent = serving(make_stack, "--fake-floor-ms", "40"), rows(2000)
    file, out = write(tmp_path / "in.jsonl", sent), tmp_path / "out.jsonl"
    interrupted(stack, file, out)
    note = (tmp_path / "out.jsonl.state").read_bytes()
    for flags in (("--dimensions", "99999"), ("--prompt-name", "none"), ("--model", "nope")):
        assert done(command(stack, file, out, *flags))[0] == 2
    assert (tmp_path / "out.jsonl.state").read_bytes() == note
    status, said, err = done(command(stack, file, out))
    assert status == 0, err
    assert json.loads(note)["job"] in said
    assert_right(read(out), sent)


def test_another_file_for_the_same_output_begins_again(make_stack, tmp_path):
    stack, sent = serving(make_stack, "--fake-floor-ms", "400"), rows(6000)
    file, out = write(tmp_path / "in.jsonl", sent), tmp_path / "out.jsonl"
    interrupted(stack, file, out)
    old = json.loads((tmp_path / "out.jsonl.state").read_text())["job"]
    other = rows(50, seed=1)
    status, _, err = done(command(stack, write(file, other), out))
    assert status == 0, err
    assert "was of another file or of other flags: began again" in err
    assert f"job {old} is cancelled" in err
    assert stack.status(old)["state"] == "cancelled"
    assert_right(read(out), other)


def test_a_job_that_a_person_has_named_is_not_cancelled_for_another_file(make_stack, tmp_path):
    stack, sent = serving(make_stack, "--fake-floor-ms", "40"), rows(2000)
    file, out = write(tmp_path / "in.jsonl", sent), tmp_path / "out.jsonl"
    interrupted(stack, file, out, "--job", "mine")
    other = rows(50, seed=1)
    status, _, err = done(command(stack, write(file, other), out, "--job", "yours"))
    assert status == 0, err
    assert "began again" in err and "is cancelled" not in err
    assert stack.status("mine")["state"] != "cancelled"
    assert_right(read(out), other)


def test_a_job_that_another_server_has_is_not_gone_on_with(make_stack, tmp_path):
    stack, sent = serving(make_stack, "--fake-floor-ms", "40"), rows(2000)
    file, out = write(tmp_path / "in.jsonl", sent), tmp_path / "out.jsonl"
    interrupted(stack, file, out)
    status, _, err = done(command(serving(make_stack), file, out))
    assert status == 2
    assert "is not known there" in err
    assert not out.exists()


def test_a_part_of_the_file_that_repeats_another_one_is_named(make_stack, tmp_path):
    stack, sent = serving(make_stack), rows(256)
    file, out = write(tmp_path / "in.jsonl", sent + sent), tmp_path / "out.jsonl"
    status, _, err = done(command(stack, file, out))
    assert status == 2
    assert "lines 257 to 512: the same ids and texts as lines 1 to 256" in err


def test_a_mistake_in_the_last_line_is_found_before_anything_is_sent(make_stack, tmp_path):
    stack = serving(make_stack)
    file = write(tmp_path / "in.jsonl", [*rows(2000), {"id": "r2000"}])
    status, _, err = done(command(stack, file, tmp_path / "out.jsonl"))
    assert status == 2
    assert "line 2001: no text under 'text'" in err
    assert stack.messages("HEDGEROW_RESULT") == 0
    assert sorted(p.name for p in tmp_path.glob("out*")) == []


def test_a_second_command_for_the_same_output_is_refused(make_stack, tmp_path):
    stack, sent = make_stack(), rows(2000)
    stack.gateway("g0")
    stack.ready("/health/live")
    file, out = write(tmp_path / "in.jsonl", sent), tmp_path / "out.jsonl"
    first = command(stack, file, out)
    stack.until(lambda: (tmp_path / "out.jsonl.state").exists(), "it has begun")
    status, _, err = done(command(stack, file, out))
    assert status == 2
    assert "another `hedgerow bulk` writes it" in err
    stack.worker("w0")  # only now: until then the first one cannot have ended
    status, _, err = done(first)
    assert status == 0, err
    assert_right(read(out), sent)


def test_a_model_that_nobody_serves_is_refused_with_those_there_are(make_stack, tmp_path):
    stack = serving(make_stack)
    file = write(tmp_path / "in.jsonl", rows(3))
    for alias, words in (
        ("nope", f"--model nope: nobody serves that; there is {MODEL}"),
        ("a b", f"--model a b: nobody serves that; there is {MODEL}"),
        ("a*", "cannot be a subject"),
    ):
        status, _, err = done(command(stack, file, tmp_path / "out", "--model", alias))
        assert status == 2
        assert words in err
    assert sorted(p.name for p in tmp_path.glob("*out*")) == []


def test_a_gateway_that_is_not_up_yet_is_waited_for(make_stack, tmp_path):
    stack, sent = make_stack(), rows(3)
    file, out = write(tmp_path / "in.jsonl", sent), tmp_path / "out.jsonl"
    run = command(stack, file, out)
    assert "waiting (no gateway: nobody listens on" in run.stderr.readline()
    stack.gateway("g0")
    stack.worker("w0")
    status, _, err = done(run)
    assert status == 0, err
    assert_right(read(out), sent)


def test_numbers_and_texts_stay_apart_as_names_in_an_array(make_stack, tmp_path):
    stack = serving(make_stack)
    names = [1, "1", "x"]
    sent = [{"id": name, "text": f"w{i}"} for i, name in enumerate(names)]
    file, out = write(tmp_path / "in.jsonl", sent), tmp_path / "out.npz"
    status, _, err = done(command(stack, file, out))
    assert status == 0, err
    found = np.load(out)
    assert found["id_kind"] == "json"
    assert sorted(map(json.loads, found["ids"].tolist()), key=repr) == sorted(names, key=repr)
    for name, got in zip(found["ids"].tolist(), found["vectors"], strict=True):
        assert np.array_equal(got, vector(f"w{names.index(json.loads(name))}"))
