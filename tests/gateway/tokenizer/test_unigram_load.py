"""What the encoder accepts, what it leaves to the library, and how it keeps its tables."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from hedgerow_gateway.tokenizer import selfcheck, unigram
from hedgerow_gateway.tokenizer.unigram import store
from hedgerow_gateway.tokenizer.unigram.spec import NotSupportedError, read_spec
from tests.gateway.tokenizer import vocabularies
from tests.gateway.tokenizer.conftest import ids_of


@pytest.fixture
def spec(unigram_cache):
    pieces = [["<unk>", 0.0], ["<s>", 0.0], ["<pad>", 0.0], ["</s>", 0.0], ["<mask>", 0.0]]
    return vocabularies.spec([*pieces, ["\u2581a", -1.0], ["b", -2.0]], "A")


def refused(spec) -> str:
    control = frozenset(t["id"] for t in spec["added_tokens"] if t["special"])
    with pytest.raises(NotSupportedError) as raised:
        read_spec(spec, control)
    return str(raised.value)


def test_the_three_pipelines_and_their_older_spelling_are_accepted(spec, unigram_cache):
    for pipeline in vocabularies.PIPELINES:
        made = vocabularies.spec(spec["model"]["vocab"], pipeline)
        assert read_spec(made, frozenset(range(5))).pipeline.name == pipeline
    older = copy.deepcopy(spec)
    older["pre_tokenizer"] = {
        "type": "Metaspace", "replacement": "\u2581", "str_rep": "\u2581", "add_prefix_space": True,
    }  # fmt: skip
    assert read_spec(older, frozenset(range(5))).pipeline.name == "A"


@pytest.mark.parametrize(
    ("path", "value", "names"),
    [
        (["model", "type"], "BPE", "model.type"),
        (["model", "byte_fallback"], True, "byte_fallback"),
        (["model", "unk_id"], None, "unk_id"),
        (["model", "unk_id"], 5, "unk_id"),
        (["normalizer"], None, "Precompiled"),
        (["normalizer"], {"type": "NFKC"}, "Precompiled"),
        (["normalizer", "normalizers", 0, "precompiled_charsmap"], "not base64!", "charsmap"),
        (["normalizer", "normalizers", 1, "content"], "x", "normalizer"),
        (["normalizer", "normalizers", 1], {"type": "Lowercase"}, "Lowercase"),
        (["pre_tokenizer"], None, "pre_tokenizer"),
        (["pre_tokenizer"], {"type": "Whitespace"}, "Whitespace"),
        (["pre_tokenizer", "split"], False, "Metaspace"),
        (["pre_tokenizer", "prepend_scheme"], "never", "Metaspace"),
        (["pre_tokenizer", "prepend_scheme"], "first", "Metaspace"),
        (["pre_tokenizer", "replacement"], "_", "Metaspace"),
        (["added_tokens", 0, "special"], False, "added_tokens"),
    ],
    ids=lambda value: ".".join(map(str, value)) if isinstance(value, list) else None,
)
def test_a_file_outside_the_whitelist_is_refused_naming_the_field(spec, path, value, names):
    node = spec
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = value
    assert names in refused(spec)


@pytest.mark.parametrize(
    ("vocab", "names"),
    [
        ([["\u2581" + "x" * 129, -1.0]], "130"),
        ([["a", 30.0], ["b", 31.0]], "log probabilities"),
        ([], "no piece"),
    ],
    ids=["piece-too-long", "positive-scores", "no-piece"],
)
def test_a_vocabulary_it_cannot_hold_is_left_to_the_library(open_pair, vocab, names):
    start = 30.0 if names == "log probabilities" else 0.0
    pieces = [[s, start] for s in vocabularies.SPECIALS]
    with pytest.raises(NotSupportedError, match=names):
        open_pair([*pieces, *vocab], "A")


def test_scores_are_those_the_library_holds_not_those_the_file_spells(small):
    from hedgerow_gateway.tokenizer.unigram.tables import library_scores

    pair = small("A")
    spelled = [score for _, score in pair.file.spec["model"]["vocab"]]
    held = library_scores(pair.library.library)
    assert len(held) == len(spelled)
    assert np.allclose(held, spelled, rtol=1e-15, atol=0)
    held_again = json.loads(pair.library.library.to_str())["model"]["vocab"]
    assert held == [score for _, score in held_again]


def test_tables_are_read_back_as_they_were_written_and_not_when_damaged(tmp_path):
    block = np.arange(10_000, dtype=np.uint32).view(np.uint8)
    file = tmp_path / "x.tables"
    store.write_tables(file, block)
    again = store.read_tables(file)
    assert again is not None and np.array_equal(again, block)
    raw = file.read_bytes()
    for damaged in (raw[:-1], raw + b"x", raw[:100] + b"\xff" + raw[101:], b"", b"hedgeuni"):
        file.write_bytes(damaged)
        assert store.read_tables(file) is None
    assert store.read_tables(tmp_path / "absent") is None
    assert [p.name for p in tmp_path.iterdir()] == ["x.tables"]


def test_a_folder_others_may_write_is_not_trusted(tmp_path):
    folder = tmp_path / "cache"
    assert store.open_folder(folder) == ""
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o777)
    assert "writable by others" in store.open_folder(folder)
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert str(blocked) in store.open_folder(blocked / "below")


def test_the_second_load_reads_the_tables_and_builds_nothing(small, tmp_path, monkeypatch):
    from hedgerow_gateway.tokenizer.unigram import tables
    from hedgerow_gateway.tokenizer.unigram.encoder import UnigramEncoder

    pair = small("A")
    folder = store.cache_folder()
    assert store.table_file(folder, pair.file.digest).is_file()
    monkeypatch.setattr(tables, "build", lambda *_: pytest.fail("built again"))
    again = UnigramEncoder.load(pair.file, pair.library.library, folder, log=print)
    assert ids_of(again, "the weather") == ids_of(pair.library, "the weather")


def test_without_a_usable_folder_it_still_encodes_and_says_so(small, tmp_path):
    from hedgerow_gateway.tokenizer.unigram.encoder import UnigramEncoder

    pair, lines = small("A"), []
    blocked = tmp_path / "file"
    blocked.write_text("")
    again = UnigramEncoder.load(pair.file, pair.library.library, blocked / "x", log=lines.append)
    assert ids_of(again, "the weather") == ids_of(pair.library, "the weather")
    assert len(lines) == 1 and "cache not used" in lines[0]


def test_another_file_never_gets_these_tables(small):
    pair = small("A")
    other = replace(pair.file, digest="0" * 64)
    folder = store.cache_folder()
    assert store.table_file(folder, other.digest) != store.table_file(folder, pair.file.digest)


def test_opening_gives_the_checked_encoder_or_one_line_that_says_why_not(small, monkeypatch):
    pair, lines = small("A"), []
    opened = unigram.open_unigram(pair.file, pair.library, log=lines.append)
    assert opened is not None and opened.name == "unigram"
    assert lines == []
    fallback = replace(pair.file, spec={**pair.file.spec, "normalizer": None})
    assert unigram.open_unigram(fallback, pair.library, log=lines.append) is None
    assert len(lines) == 1 and "Precompiled" in lines[0] and "library serves" in lines[0]
    monkeypatch.setattr(unigram, "differences", lambda *_: ["bad"])
    assert unigram.open_unigram(pair.file, pair.library, log=lines.append) is None
    assert len(lines) == 2 and "self-check" in lines[1]


def test_without_numba_the_library_serves_and_one_line_says_what_to_install(small, monkeypatch):
    pair, lines = small("A"), []
    monkeypatch.delitem(sys.modules, "hedgerow_gateway.tokenizer.unigram.encoder")
    monkeypatch.setitem(sys.modules, "numba.core", None)
    assert unigram.open_unigram(pair.file, pair.library, log=lines.append) is None
    assert len(lines) == 1 and "hedgerow[unigram]" in lines[0]


def test_the_self_check_finds_an_encoder_that_is_wrong_in_one_string(small):
    pair = small("A")

    class Wrong:
        name = "wrong"

        def encode(self, texts):
            ids, cu = pair.library.encode(texts)
            ids = ids.copy()
            for k, text in enumerate(texts):
                if text == "</s>":
                    ids[cu[k]] += 1
            return ids, cu

    before = selfcheck.FIGURES["tokenizer_selfcheck_differences"]
    assert selfcheck.differences(Wrong(), pair.library) == ["</s>"]
    assert selfcheck.FIGURES["tokenizer_selfcheck_differences"] == before + 1
    assert len(set(selfcheck.nasty())) == 2000


_NOWHERE = """
import sys
from pathlib import Path
from benchmarks.tokenizers.vocabulary import as_file, spec
from hedgerow_gateway.tokenizer.hf import HfEncoder
from hedgerow_gateway.tokenizer.unigram import open_unigram
pieces = [["<unk>", 0.0], ["<s>", 0.0], ["<pad>", 0.0], ["</s>", 0.0], ["<mask>", 0.0]]
file = as_file(spec([*pieces, ["\u2581a", -1.0], ["b", -2.0]], "A"), Path(sys.argv[1]))
print(open_unigram(file, HfEncoder(file), log=print).encode(["a ab"])[0].tolist())
"""


@pytest.mark.slow
def test_a_machine_with_no_folder_to_keep_anything_still_gets_the_fast_encoder(
    unigram_cache, tmp_path
):
    blocked = tmp_path / "file"
    blocked.write_text("")
    environment = {**os.environ, "HEDGEROW_CACHE_DIR": str(blocked / "x"), "HOME": "/nonexistent"}
    environment["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)
    command = [sys.executable, "-c", _NOWHERE, str(tmp_path / "tokenizer.json")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert "cache not used" in lines[0]
    assert lines[-1] == "[5, 5, 6]"
