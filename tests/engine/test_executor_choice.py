"""Which executor serves a model on a CPU, and that torch comes only with the one that needs it."""

from __future__ import annotations

import builtins
import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hedgerow_engine.load import EngineSettings, ModelSpec, load_engines
from hedgerow_engine.native.build import supported
from hedgerow_engine.native.executor import NativeExecutor
from hedgerow_engine.weights import Weights
from hedgerow_shared.errors import StartupError
from hedgerow_shared.modelcard import read_card
from tests.engine.conftest import cosines
from tests.engine.tiny import embed, save, seeded, token_batches, transformers, write_modules

BLOCKED = """
import sys
sys.modules["torch"] = None
from pathlib import Path
from hedgerow_engine.load import EngineSettings, ModelSpec, load_engines
from hedgerow_shared.ragged import Lane, RaggedBatch
host = load_engines(
    [ModelSpec(alias="m", folder=Path(sys.argv[1]))], EngineSettings(), log=lambda line: None
)
engine = host.engines["m"]
row = engine.step(RaggedBatch.of([[101, 7592, 102]]), Lane.QUERY).result().rows[0][0]
print(engine.executor_name, *row[:8])
host.close()
"""


def open_logged(folder: Path, **settings: object) -> tuple[object, list[str]]:
    lines: list[str] = []
    spec = ModelSpec(alias="m", folder=folder)
    host = load_engines([spec], EngineSettings(warmup_s=0, **settings), log=lines.append)  # type: ignore[arg-type]
    return host, lines


@pytest.fixture
def native_runs(minilm_folder: Path) -> None:
    reason = supported(read_card(minilm_folder))
    if reason is not None:
        pytest.skip(f"native code does not run here: {reason}")


@pytest.mark.usefixtures("native_runs")
def test_minilm_is_served_without_torch(minilm_folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED, str(minilm_folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("native")


@pytest.mark.usefixtures("native_runs")
def test_both_executors_give_the_same_vectors(minilm_folder: Path) -> None:
    sequences = token_batches(30000, (3, 50, 200, 3))
    got = []
    for kind in ("native", "packed"):
        host, _ = open_logged(minilm_folder, cpu_executor=kind)
        got.append(embed(host.engines["m"], sequences))
        host.close()
    assert cosines(*got).min() > 0.9997


FORBIDDEN = """
import ctypes, sys
from pathlib import Path
import hedgerow_engine.native.executor
from hedgerow_engine.load import EngineSettings, ModelSpec, load_engines
PR_SET_MDWE, REFUSE_EXEC_GAIN = 65, 1
if ctypes.CDLL(None).prctl(PR_SET_MDWE, REFUSE_EXEC_GAIN, 0, 0, 0):
    sys.exit(77)
host = load_engines(
    [ModelSpec(alias="m", folder=Path(sys.argv[1]))], EngineSettings(warmup_s=0), log=print
)
print(host.engines["m"].executor_name)
host.close()
"""


@pytest.mark.usefixtures("native_runs")
def test_a_process_that_may_not_make_memory_executable_is_served_by_torch(
    minilm_folder: Path,
) -> None:
    """As under systemd's MemoryDenyWriteExecute; LLVM would abort the process."""
    done = subprocess.run(
        [sys.executable, "-c", FORBIDDEN, str(minilm_folder)], capture_output=True, text=True
    )
    if done.returncode == 77:
        pytest.skip("this kernel has no such switch (Linux 6.3 has)")
    assert done.returncode == 0, done.stderr
    assert "may not make memory executable" in done.stdout
    assert done.stdout.splitlines()[-1] in ("packed", "plain torch")


def test_an_llvm_that_does_not_load_is_a_reason_and_not_an_end(
    minilm_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = builtins.__import__

    def broken(name: str, *args: object) -> object:
        if name == "hedgerow_engine.native.executor":
            raise OSError("Could not find/load shared object file: libllvmlite.so")
        return honest(name, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", broken)
    host, lines = open_logged(minilm_folder)
    assert any("llvmlite does not load (Could not find/load" in line for line in lines)
    assert host.engines["m"].executor_name in ("packed", "plain torch")  # type: ignore[attr-defined]
    host.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("torch_there", [True, False])
def test_where_there_is_no_torch_a_lower_rung_takes_what_the_best_one_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torch_there: bool
) -> None:
    config = transformers.BertConfig(
        vocab_size=50,
        hidden_size=64,
        num_attention_heads=4,
        num_hidden_layers=1,
        intermediate_size=64,
    )
    folder = save(tmp_path, transformers.BertModel(config))
    card = read_card(folder)
    if (reason := supported(card)) is None or "head size 16" not in reason:
        pytest.skip(f"this CPU's best rung takes heads of 16, or none: {reason}")
    there = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *args: None if name == "torch" and not torch_there else there(name, *args),
    )
    assert (supported(card) is None) is not torch_there
    if not torch_there:
        executor = NativeExecutor.load(card, Weights.open(folder), log=lambda _: None)
        assert executor.name == "native avx2"


def test_more_threads_than_cores_are_cut_and_none_is_refused(minilm_folder: Path) -> None:
    host, lines = open_logged(minilm_folder, threads=4096)
    assert any(line.startswith("--threads 4096: ") for line in lines)
    assert "4096" not in host.device_name  # type: ignore[attr-defined]
    host.close()  # type: ignore[attr-defined]
    with pytest.raises(StartupError, match="--threads 0: at least 1"):
        open_logged(minilm_folder, threads=0)


def splade(folder: Path) -> Path:
    config = transformers.BertConfig(
        vocab_size=50,
        hidden_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
    )
    save(folder, seeded(transformers.BertForMaskedLM, config))
    write_modules(folder, "Transformer", "SpladePooling")
    return folder


def test_what_native_code_does_not_have_goes_to_torch_and_the_log_says_why(tmp_path: Path) -> None:
    host, lines = open_logged(splade(tmp_path / "m"))
    assert host.engines["m"].executor_name in ("packed", "plain torch")
    assert any("sparse output is computed in torch only" in line for line in lines)
    host.close()


def test_native_asked_for_where_it_cannot_serve_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="--cpu-executor native: sparse output"):
        open_logged(splade(tmp_path / "m"), cpu_executor="native")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"device": "tpu"}, "--device tpu: use auto, cpu, cuda"),
        ({"device": "cpu", "dtype": "float16"}, "--dtype float16"),
    ],
    ids=["device", "dtype"],
)
def test_settings_no_machine_has_are_refused(
    minilm_folder: Path, settings: dict[str, str], message: str
) -> None:
    with pytest.raises(StartupError, match=message):
        open_logged(minilm_folder, **settings)


def test_packed_falls_back_to_plain_torch_with_the_same_vectors(
    minilm_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hedgerow_engine.device import packed

    sequences = token_batches(30000, (3, 50, 120))
    host, _ = open_logged(minilm_folder, cpu_executor="packed", dtype="float32")
    want = embed(host.engines["m"], sequences)
    host.close()
    monkeypatch.setattr(packed, "packed_works", lambda dtype: False)
    host, lines = open_logged(minilm_folder, cpu_executor="packed", dtype="float32")
    assert host.engines["m"].executor_name == "plain torch"
    assert any("F.linear" in line for line in lines)
    assert np.allclose(embed(host.engines["m"], sequences), want, atol=1e-5)
    host.close()
