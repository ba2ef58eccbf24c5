"""Compiled programs on disk: private, atomic, and never a reason not to start."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from native_models import save
from transformers import BertConfig, BertModel

from hedgerow_engine.native import build as build_module
from hedgerow_engine.native import cache as cache_module
from hedgerow_engine.native.cache import ObjectCache, cache_folder, program_key
from hedgerow_engine.native.compiler import compile_unit
from hedgerow_engine.native.executor import NativeExecutor
from hedgerow_engine.weights import Weights
from hedgerow_shared.modelcard import read_card
from hedgerow_shared.ragged import RaggedBatch

needs_owner = pytest.mark.skipif(not hasattr(os, "getuid"), reason="no file owners here")


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory) -> Path:
    config = BertConfig(
        hidden_size=64,
        num_attention_heads=2,
        num_hidden_layers=1,
        intermediate_size=64,
        vocab_size=50,
    )
    return save(BertModel(config, add_pooling_layer=False), tmp_path_factory.mktemp("bert"))


@pytest.fixture
def compiles(monkeypatch) -> list[int]:
    """Grows by one at every compile."""
    count: list[int] = []

    def counted(unit):
        count.append(1)
        return compile_unit(unit)

    monkeypatch.setattr(build_module, "compile_unit", counted)
    return count


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("HEDGEROW_CACHE_DIR", str(tmp_path))
    return tmp_path / "native"


def _start(model_folder: Path) -> tuple[NativeExecutor, list[str]]:
    lines: list[str] = []
    card = read_card(model_folder)
    executor = NativeExecutor.load(card, Weights.open(model_folder), log=lines.append)
    assert executor.run(RaggedBatch.of([[3, 4, 5]])).shape == (1, 64)
    return executor, lines


def test_a_second_start_compiles_nothing(model_folder, folder, compiles) -> None:
    _, lines = _start(model_folder)
    assert len(compiles) == 1 and "compiled for" in lines[0]
    _, lines = _start(model_folder)
    assert len(compiles) == 1 and lines == []
    (file,) = folder.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    assert folder.stat().st_mode & 0o777 == 0o700


def test_another_generator_geometry_or_cpu_is_another_program(monkeypatch) -> None:
    one = program_key("0.50", ("znver4", "+avx"), "geometry")
    assert one == program_key("0.50", ("znver4", "+avx"), "geometry")
    assert one != program_key("0.51", ("znver4", "+avx"), "geometry")
    assert one != program_key("0.50", ("znver5", "+avx"), "geometry")
    assert one != program_key("0.50", ("znver4", "+avx"), "other")
    monkeypatch.setattr(cache_module, "generator_hash", lambda: "a kernel was changed")
    assert one != program_key("0.50", ("znver4", "+avx"), "geometry")


@pytest.mark.parametrize("damage", [b"", b"x" * 5000, None], ids=["empty", "text", "cut"])
def test_a_damaged_object_is_compiled_again_with_a_line(
    model_folder, folder, compiles, damage: bytes | None
) -> None:
    _start(model_folder)
    (file,) = folder.iterdir()
    file.write_bytes(file.read_bytes()[:3000] if damage is None else damage)
    _, lines = _start(model_folder)
    assert len(compiles) == 2
    assert any("is damaged" in line for line in lines)
    _start(model_folder)
    assert len(compiles) == 2


def test_a_folder_that_cannot_be_written_costs_a_line_and_a_compile(
    model_folder, tmp_path, monkeypatch, compiles
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("no folder can be made below a file")
    monkeypatch.setenv("HEDGEROW_CACHE_DIR", str(blocked))
    for n in (1, 2):
        _, lines = _start(model_folder)
        assert len(compiles) == n
        assert any("not cached" in line and "HEDGEROW_CACHE_DIR" in line for line in lines)


@pytest.mark.parametrize("name", ["x" * 300, "/".join(["x" * 200] * 30)], ids=["name", "path"])
def test_a_folder_that_no_disk_can_have_costs_a_line_and_a_compile(
    model_folder, tmp_path, monkeypatch, name: str
) -> None:
    monkeypatch.setenv("HEDGEROW_CACHE_DIR", str(tmp_path / name))
    _, lines = _start(model_folder)
    assert any("not cached" in line and "File name too long" in line for line in lines)


def test_an_object_that_cannot_be_put_in_its_place_leaves_nothing_behind(folder) -> None:
    lines: list[str] = []
    (folder / "key.obj" / "full").mkdir(parents=True, mode=0o700)
    folder.chmod(0o700)
    ObjectCache(folder, lines.append).put("key", b"object")
    assert len(lines) == 1 and "not cached" in lines[0]
    assert [entry.name for entry in folder.iterdir()] == ["key.obj"]


@needs_owner
@pytest.mark.skipif(os.name == "posix" and os.getuid() != 0, reason="only root becomes another")
def test_a_user_without_a_home_starts_with_a_line(model_folder) -> None:
    code = """
import os, sys
for name in ("HOME", "XDG_CACHE_HOME", "HEDGEROW_CACHE_DIR"):
    os.environ.pop(name, None)
from pathlib import Path
from hedgerow_engine.native.cache import ObjectCache, cache_folder
os.setresuid(12345, 12345, 12345)
ObjectCache(cache_folder(), print).put("key", b"object")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd="/")
    assert done.returncode == 0, done.stderr
    assert "not cached: /dev/null" in done.stdout and "HEDGEROW_CACHE_DIR" in done.stdout


@needs_owner
def test_an_object_that_others_could_write_is_never_run(model_folder, folder, compiles) -> None:
    _start(model_folder)
    (file,) = folder.iterdir()
    file.chmod(0o666)
    _, lines = _start(model_folder)
    assert len(compiles) == 2 and any("others may write" in line for line in lines)


@needs_owner
def test_a_folder_that_others_could_write_is_neither_read_nor_used(
    model_folder, folder, compiles
) -> None:
    _start(model_folder)
    folder.chmod(0o777)
    _, lines = _start(model_folder)
    assert len(compiles) == 2
    assert sum("others may write" in line for line in lines) == 2
    folder.chmod(0o700)


@needs_owner
def test_a_foreign_object_and_a_link_are_refused(folder, monkeypatch, tmp_path) -> None:
    lines: list[str] = []
    cache = ObjectCache(folder, lines.append)
    cache.put("key", b"code")
    assert cache.get("key") == b"code"
    other = os.getuid() + 1
    monkeypatch.setattr(os, "getuid", lambda: other)
    assert cache.get("key") is None and "another user" in lines[-1]
    monkeypatch.undo()
    (tmp_path / "elsewhere.obj").write_bytes(b"code")
    (folder / "linked.obj").symlink_to(tmp_path / "elsewhere.obj")
    assert cache.get("linked") is None and "not a plain file" in lines[-1]


def test_the_folder_follows_the_environment(monkeypatch) -> None:
    monkeypatch.setenv("HEDGEROW_CACHE_DIR", "/somewhere")
    assert cache_folder() == Path("/somewhere/native")
    monkeypatch.delenv("HEDGEROW_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache_folder() == Path("/xdg/hedgerow/native")
    monkeypatch.setenv("XDG_CACHE_HOME", "~/xdg")
    assert cache_folder() == Path.home() / "xdg" / "hedgerow" / "native"
    monkeypatch.setenv("HEDGEROW_CACHE_DIR", "~/x")
    assert cache_folder() == Path.home() / "x" / "native"
    monkeypatch.setenv("HEDGEROW_CACHE_DIR", "~no such user/x")
    assert cache_folder() == Path("~no such user/x/native")
    monkeypatch.delenv("HEDGEROW_CACHE_DIR")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "hedgerow" / "native"
