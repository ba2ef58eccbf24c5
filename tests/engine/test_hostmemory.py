"""Whether a model fits into memory, the machine's and its control group's."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hedgerow_engine.hostmemory import available_bytes, cgroup_bytes, loaded_bytes
from hedgerow_engine.weights import Weights
from hedgerow_shared.errors import StartupError
from tests.engine.config_cases import write
from tests.engine.conftest import OpenEngine
from tests.engine.tiny import save, seeded, transformers


def groups(root: Path, lines: str, **files: str) -> tuple[Path, Path]:
    """(proc, cgroups) as the kernel shows them."""
    proc, cgroups = root / "proc", root / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "self" / "cgroup").write_text(lines)
    for name, text in files.items():
        file = cgroups / name.replace("__", "/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return proc, cgroups


def test_the_room_of_a_group_is_its_limit_less_what_cannot_be_dropped(tmp_path: Path) -> None:
    (tmp_path / "cgroup" / "a" / "b").mkdir(parents=True)
    proc, cgroups = groups(tmp_path, "0::/a/b\n")
    for name, text in {
        "a/memory.max": "1000\n",
        "a/memory.current": "700\n",
        "a/memory.stat": "anon 500\ninactive_file 150\nactive_file 50\n",
        "a/b/memory.max": "max\n",
        "a/b/memory.current": "600\n",
    }.items():
        (cgroups / name).write_text(text)
    assert cgroup_bytes(proc, cgroups) == 500
    (cgroups / "a/b/memory.max").write_text("650\n")
    assert cgroup_bytes(proc, cgroups) == 50


def test_groups_of_the_first_version_are_read_too(tmp_path: Path) -> None:
    folder = tmp_path / "cgroup" / "memory"
    folder.mkdir(parents=True)
    proc, cgroups = groups(tmp_path, "4:cpu,cpuacct:/x\n3:memory:/not/there\n")
    (folder / "memory.limit_in_bytes").write_text("1000\n")
    (folder / "memory.usage_in_bytes").write_text("400\n")
    (folder / "memory.stat").write_text("inactive_file 1\ntotal_inactive_file 100\n")
    assert cgroup_bytes(proc, cgroups) == 700


def test_without_a_group_only_the_machine_counts(tmp_path: Path) -> None:
    assert cgroup_bytes(tmp_path, tmp_path) > available_bytes()


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float32], ids=str)
def test_the_estimate_is_what_native_code_packs(
    tmp_path: Path, open_engine: OpenEngine, stored: torch.dtype
) -> None:
    config = transformers.BertConfig(
        vocab_size=100,
        hidden_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=1024,
        max_position_embeddings=64,
    )
    folder = save(tmp_path / "m", seeded(transformers.BertModel, config).to(stored))
    engine = open_engine(folder, cpu_executor="native", dtype="float32")
    wanted = loaded_bytes(Weights.open(folder), "float32")
    assert wanted == pytest.approx(engine.stats()["native_weight_bytes"], rel=0.1)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_copy_that_the_group_has_no_room_for_is_refused(
    tmp_path: Path, open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    folder = write(tmp_path / "m", "Bert")
    needed = loaded_bytes(Weights.open(folder), dtype)  # type: ignore[arg-type]
    monkeypatch.setattr("hedgerow_engine.hostmemory.cgroup_bytes", lambda: needed - 1)
    with pytest.raises(StartupError, match=r"MiB of memory are free; take a smaller model"):
        open_engine(folder, dtype=dtype)
    monkeypatch.setattr("hedgerow_engine.hostmemory.cgroup_bytes", lambda: needed)
    assert open_engine(folder, dtype=dtype).max_seq_len == 130
