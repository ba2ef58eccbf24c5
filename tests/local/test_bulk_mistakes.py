"""`hedgerow bulk`: what is wrong with a command is said before anything is sent."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest

from hedgerow_local.bulknote import State, go_on, open_part
from hedgerow_local.bulkout import id_array
from hedgerow_local.bulkrows import BulkOptions, Part, in_the_file, parts
from hedgerow_shared.errors import StartupError
from tests.local.test_cli import hedgerow


@pytest.fixture
def options(tmp_path):
    """`options(...)`: wishes about a file of two rows."""
    file = tmp_path / "in.jsonl"
    file.write_text('{"id": 1, "text": "a"}\n\n{"id": 2, "text": "b"}\n')

    def make(out="out.jsonl", **wishes):
        return BulkOptions(file=file, out=tmp_path / out, model="m", **wishes)

    return make


@pytest.mark.parametrize(
    ("out", "words"),
    [
        pytest.param("nowhere/x", "no folder", id="no folder"),
        pytest.param("/", "a folder; name a file in it", id="root"),
        pytest.param(".", "a folder; name a file in it", id="folder"),
        pytest.param("/dev/null", "not a regular file", id="device"),
        pytest.param("in.jsonl", "is the input itself", id="input"),
        pytest.param("soft", "is the input itself", id="link to the input"),
        pytest.param("hard", "is the input itself", id="hard link"),
        pytest.param("x", "x.part is the input itself", id="input as what is collected"),
    ],
)
def test_an_output_that_cannot_be_is_refused(options, tmp_path, out, words):
    (tmp_path / "soft").symlink_to(tmp_path / "in.jsonl")
    os.link(tmp_path / "in.jsonl", tmp_path / "hard")
    os.link(tmp_path / "in.jsonl", tmp_path / "x.part")
    before = (tmp_path / "in.jsonl").read_bytes()
    with pytest.raises(StartupError, match=f"^--out .*{words}"):
        options(out).check()
    done = hedgerow("bulk", str(tmp_path / "in.jsonl"), "--out", str(tmp_path / out))
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert (tmp_path / "in.jsonl").read_bytes() == before


@pytest.mark.parametrize("job", ["../a", "a b", "-a", "x" * 65, "é"])
def test_a_job_has_a_name_that_the_server_takes(options, job):
    with pytest.raises(StartupError, match=r"^--job .* must be up to 64 letters, digits"):
        options(job=job).check()
    options(job="a_b-1").check()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        pytest.param("[" * 100_000, "nested too deeply", id="deep"),
        pytest.param("no", "not JSON", id="not JSON"),
        pytest.param('{"id": null, "text": "a"}', "'id' .--id-field. must be", id="null"),
        pytest.param('{"id": true, "text": "a"}', "must be text of 1 to 512", id="bool"),
        pytest.param('{"id": 1.5, "text": "a"}', "must be text", id="fraction"),
        pytest.param('{"id": "", "text": "a"}', "must be text", id="empty"),
        pytest.param(f'{{"id": "{"x" * 513}", "text": "a"}}', "must be text", id="long"),
        pytest.param(f'{{"id": {2**63}, "text": "a"}}', "number of 64 bits", id="large"),
        pytest.param('{"id": "\\ud800", "text": "a"}', "not Unicode", id="id of half a pair"),
        pytest.param('{"id": 1, "text": "\\ud800"}', "not Unicode", id="text of half a pair"),
        pytest.param('{"id": 1}', "no text under 'text'", id="no text"),
        pytest.param("[1]", "no text under 'text'", id="list"),
        pytest.param('{"id": 1, "text": "b"}', "'id' is 1, as in line 1", id="same id"),
    ],
)
def test_a_line_that_is_no_row_is_named(options, line, words):
    wishes = options()
    wishes.file.write_text('{"id": 1, "text": "a"}\n' + line + "\n")
    with pytest.raises(StartupError, match=f"in.jsonl, line 2: .*{words}"):
        list(parts(wishes, skip=0))


def test_a_refusal_of_a_part_names_lines_and_fields_of_the_file(options):
    wishes = options(id_field="name", text_field="body")
    part = Part([{"id": 7, "text": "a"}] * 3, [12, 14, 15])
    said = "refused (400): rows[2].id: is the same as rows[1].id (and 1 more, see detail)"
    assert in_the_file(said, wishes, part) == (
        f"{wishes.file}: refused (400): line 15 (name): is the same as line 14 (name) (and 1 more)"
    )
    assert in_the_file("refused (400): dtype: no", wishes, part) == "refused (400): dtype: no"
    assert in_the_file("rows[0]", wishes, None) == "rows[0]"


def test_parts_are_the_same_whenever_the_file_is_read(options):
    wishes = options()
    wishes.file.write_text("".join(json.dumps({"text": f"w{i}"}) + "\n" for i in range(600)))
    whole = list(parts(wishes, skip=0))
    assert [(len(part.rows), part.where) for part in whole] == [
        (256, "lines 1 to 256"),
        (256, "lines 257 to 512"),
        (88, "lines 513 to 600"),
    ]
    assert list(parts(wishes, skip=256)) == whole[1:]
    assert list(parts(wishes, skip=600)) == []


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("nonsense", id="no JSON"),
        pytest.param('{"job": "j", "bytes": "many"}', id="text for a number"),
        pytest.param('{"job": "j", "bytes": -1}', id="less than nothing"),
        pytest.param("[]", id="list"),
        pytest.param("{}", id="nothing"),
        pytest.param("[" * 100_000, id="deep"),
    ],
)
def test_a_damaged_note_is_said_to_be(options, text):
    wishes = options()
    wishes.note.write_text(text)
    with pytest.raises(StartupError, match=r"out.jsonl.state: damaged .* remove it"):
        State.read(wishes)
    done = hedgerow("bulk", str(wishes.file), "--out", str(wishes.out), "--model", "m")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)


def test_a_note_is_of_the_same_wishes_about_the_same_file(options):
    wishes = options()
    assert State.read(wishes) is None
    state = State("j", wishes.digest, sent=3, bytes=9, fingerprints=["a:b"])
    state.write(wishes)
    assert State.read(wishes) == state
    for other in (options(dtype="int8"), options(job="j"), options(prompt_name="query")):
        assert State.read(other) is None
    wishes.file.write_text("{}\n")
    assert State.read(wishes) is None


def test_what_was_collected_is_checked_against_the_note(options):
    wishes = options(job="j")
    wishes.part.write_bytes(b"123456")
    with open_part(wishes) as part:
        with pytest.raises(StartupError, match=r"knows of 7 .* 6 are there.* under another --job"):
            go_on(part, wishes, 7)
        assert wishes.part.read_bytes() == b"123456"
        go_on(part, wishes, 4)
        part.write(b"x")
    assert wishes.part.read_bytes() == b"1234x"


def test_a_command_that_was_refused_leaves_no_empty_file(options):
    wishes = options()
    with open_part(wishes):
        assert wishes.part.exists()
    assert not wishes.part.exists()


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        pytest.param([1, 2, -(2**63), 2**63 - 1], "int", id="numbers"),
        pytest.param(["1", "x", "é"], "text", id="texts"),
        pytest.param([1, "1"], "json", id="both"),
        pytest.param(["a", "a\0"], "json", id="NUL, which numpy drops"),
        pytest.param([], "text", id="none"),
    ],
)
def test_names_in_an_array_are_told_apart(names, kind):
    found, ids = id_array(names)
    assert found == kind
    back = np.array(ids).tolist()
    assert ([json.loads(text) for text in back] if kind == "json" else back) == names
