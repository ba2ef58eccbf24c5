"""What a person reads when a card is missing, too old, too small, or lacks a wheel."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from hedgerow_engine import device as devices
from hedgerow_engine.device import open_device
from hedgerow_engine.device.cuda import device as cuda
from hedgerow_engine.device.cuda.rehearsal import Rehearsal
from hedgerow_engine.layers.kernels.twins import TorchKernels
from hedgerow_engine.settings import EngineSettings
from hedgerow_shared.errors import StartupError
from tests.engine.cuda.conftest import OpenExecutor, OpenRehearsed

no_card = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a card")


def line(error: pytest.ExceptionInfo[StartupError]) -> str:
    text = str(error.value)
    assert "\n" not in text and len(text) < 400
    return text


@no_card
def test_no_card_says_what_was_found_and_what_to_use() -> None:
    with pytest.raises(StartupError) as error:
        open_device(EngineSettings(device="cuda"), lambda text: None)
    assert "torch" in line(error) and "--device cpu" in line(error)


def test_a_number_that_is_none_is_refused() -> None:
    with pytest.raises(StartupError) as error:
        open_device(EngineSettings(device="cuda:one"), lambda text: None)
    assert "cuda:N" in line(error)


def test_a_card_that_does_not_exist_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(StartupError) as error:
        open_device(EngineSettings(device="cuda:2"), lambda text: None)
    assert "2 cards" in line(error)


def test_an_old_card_is_named_with_what_it_lacks() -> None:
    with pytest.raises(StartupError) as error:
        cuda.check_arch(Rehearsal(arch=75), "--device cuda")
    assert "7.5" in line(error) and "8.0" in line(error) and "--device cpu" in line(error)
    cuda.check_arch(Rehearsal(arch=80), "--device cuda")


def test_too_little_memory_names_both_numbers(open_executor: OpenExecutor) -> None:
    card = Rehearsal()
    card.free = 100 << 20
    with pytest.raises(StartupError) as error:
        open_executor(card)
    assert "100 MiB free" in line(error) and "GPU memory" in line(error)


def test_an_unknown_attention_backend_lists_those_there_are(open_executor: OpenExecutor) -> None:
    with pytest.raises(StartupError) as error:
        open_executor(Rehearsal(), attention="flash")
    assert "varlen" in line(error) and "flashinfer_fa3" in line(error)


def test_a_missing_flashinfer_is_one_line_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec

    def without(name: str, *args: Any) -> Any:
        return None if name.startswith(("flashinfer", "flash_attn")) else real(name, *args)

    monkeypatch.setattr(importlib.util, "find_spec", without)
    log: list[str] = []
    found = cuda.installed_backends(log.append)
    assert found == {"sdpa", "varlen"}
    assert len(log) == 1 and "hedgerow[cuda]" in log[0] and "torch's kernels" in log[0]


def test_kernels_that_do_not_compile_fall_back_with_one_line_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken() -> Any:
        raise RuntimeError("nvcc not found\nat line 3")

    class Wrong(TorchKernels):
        name = "wrong"

        def norm(self, x: Any, norm: Any) -> Any:
            return super().norm(x, norm) + 1

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(cuda, "_flashinfer", broken)
    monkeypatch.setattr(cuda, "_triton", Wrong)
    log: list[str] = []
    assert cuda.fused_kernels(torch.device("cpu"), log.append).name == "torch"
    assert len(log) == 3 and all("\n" not in text for text in log)
    assert "nvcc not found" in log[0] and "differ" in log[1] and log[2].endswith("torch")


def test_auto_without_a_card_takes_the_cpu_and_imports_no_torch_for_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(devices, "CARD", tmp_path / "absent")
    monkeypatch.setitem(sys.modules, "hedgerow_engine.device.cuda.device", None)
    assert open_device(EngineSettings(device="auto"), lambda text: None).name.startswith("cpu")


@no_card
def test_auto_with_a_card_that_cannot_be_used_says_so_and_takes_the_cpu(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "card").touch()
    monkeypatch.setattr(devices, "CARD", tmp_path / "card")
    log: list[str] = []
    assert open_device(EngineSettings(device="auto"), log.append).name.startswith("cpu")
    assert len(log) == 1 and log[0].startswith("a card is there but not used")


def test_counters_of_graphs_and_memory_are_in_the_stats(open_rehearsed: OpenRehearsed) -> None:
    stats = open_rehearsed(Rehearsal(at_once=True)).stats()
    wanted = {
        "graph_eager",
        "graph_captured",
        "graph_replayed",
        "graph_evicted",
        "graph_refused",
        "graph_capture_failed",
        "graph_capture_ms",
        "graph_warmed",
        "graph_inflection_tokens",
        "graphs",
        "staging_waits",
        "out_of_memory",
        "batches_isolated",
    }
    assert wanted <= set(stats)


def test_float8_multiplies_the_layers_and_keeps_the_vectors_close(
    open_rehearsed: OpenRehearsed,
) -> None:
    """The flag, end to end on a tiny random model; its cosine on real ones is gpu_check's."""
    from tests.engine.conftest import cosines
    from tests.engine.tiny import embed

    plain = open_rehearsed(Rehearsal(at_once=True), dtype="bfloat16")
    log: list[str] = []
    try:
        narrow = open_rehearsed(Rehearsal(at_once=True), dtype="bfloat16", fp8=True, log=log)
    except StartupError:
        raise
    except (RuntimeError, NotImplementedError) as error:
        pytest.skip(f"this torch multiplies no float8 on a CPU: {error}")
    sequences = [[10, 11, 12, 13], [40, 41]]
    got = cosines(embed(narrow, sequences), embed(plain, sequences))
    assert any(text.startswith("float8: ") for text in log)
    assert 0.97 < got.min() < 1.0 - 1e-7
