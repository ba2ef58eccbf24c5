"""What a person reads when a card is missing, too old, too small, or lacks a wheel."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hedgerow_engine import device as devices
from hedgerow_engine.device import open_device
from hedgerow_engine.device.cuda import device as cuda
from hedgerow_engine.device.cuda.rehearsal import Rehearsal
from hedgerow_engine.layers.kernels.twins import TorchKernels
from hedgerow_engine.settings import EngineSettings
from hedgerow_engine.weightfile import RawTensor
from hedgerow_engine.weights import Weights
from hedgerow_shared.errors import StartupError
from hedgerow_shared.modelcard import read_card
from tests.engine.cuda.conftest import VOCAB, OpenExecutor, OpenRehearsed, rehearsed, settings
from tests.engine.tiny import embed, save, seeded, transformers, write_modules

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

    monkeypatch.setattr(cuda, "flashinfer_missing", lambda: None)
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


@pytest.mark.parametrize(
    ("version", "used"),
    [
        ("0.6.9", False),
        ("0.7.2", False),
        ("0.7.2rc1", False),
        ("nightly", False),
        ("0.7.2.post1", True),
        ("0.7.4", True),
        ("0.10.0", True),
    ],
)
def test_a_flashinfer_whose_graphs_are_wrong_is_absent_with_its_reason(
    version: str, used: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *args: object())
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
    log: list[str] = []
    assert ("flashinfer_fa2" in cuda.installed_backends(log.append)) == used
    assert len(log) == (not used)
    if not used:
        assert version in log[0] and "0.7.2.post1" in log[0] and "torch's kernels" in log[0]


def test_a_flashinfer_that_does_not_say_its_version_is_absent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unknown(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *args: object())
    monkeypatch.setattr(importlib.metadata, "version", unknown)
    log: list[str] = []
    assert "flashinfer_fa3" not in cuda.installed_backends(log.append)
    assert len(log) == 1 and "does not say its version" in log[0]


@pytest.mark.parametrize(
    ("arch", "dtype", "said"),
    [(80, "auto", "8.0"), (89, "auto", "9.0"), (90, "float16", "float16")],
)
def test_float8_is_refused_at_start_where_it_cannot_be_multiplied(
    arch: int, dtype: str, said: str, open_executor: OpenExecutor
) -> None:
    with pytest.raises(StartupError) as error:
        open_executor(Rehearsal(arch=arch), fp8=True, dtype=dtype)
    assert said in line(error) and "fp8" in line(error)


@pytest.mark.parametrize(
    ("name", "kind", "shape", "dtype", "size"),
    [
        ("layer.0.query.weight", "BF16", (6, 4), torch.float32, 96),
        ("layer.0.query.weight", "F32", (6, 4), torch.bfloat16, 48),
        ("layer.0.query.bias", "BF16", (6,), torch.bfloat16, 24),
        ("embed_tokens.weight", "BF16", (6, 4), torch.float32, 48),
        ("word_embeddings.weight", "F64", (6, 4), torch.bfloat16, 96),
    ],
)
def test_memory_is_counted_in_the_numbers_the_card_will_hold(
    name: str, kind: str, shape: tuple[int, ...], dtype: torch.dtype, size: int
) -> None:
    numbers = {"BF16": np.uint16, "F32": np.float32, "F64": np.float64}[kind]
    raw = RawTensor(name, kind, np.zeros(shape, numbers), Path("model.safetensors"))
    assert cuda.bytes_on_card(raw, dtype) == size


def test_a_model_that_fits_in_16_bits_only_is_refused_in_32(
    open_executor: OpenExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda, "_WORKING_BYTES", 0)
    card = Rehearsal()
    card.free = 90_000
    open_executor(card, dtype="bfloat16")
    with pytest.raises(StartupError) as error:
        open_executor(card, dtype="float32")
    assert "float32 weights" in line(error)


def full(*args: object, **named: object) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 2 GiB")


def test_a_card_that_fills_up_while_loading_is_one_line(
    open_executor: OpenExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda, "load_model", full)
    with pytest.raises(StartupError) as error:
        open_executor(Rehearsal())
    assert "ran out of memory while" in line(error) and "--device cpu" in line(error)


def test_a_card_that_fills_up_in_the_first_pass_is_one_line(open_executor: OpenExecutor) -> None:
    card = Rehearsal()
    executor = open_executor(card)
    card.failing_launches = 2  # the second try too
    with pytest.raises(StartupError) as error:
        executor.warm(0.0)
    assert "first passes" in line(error)


def test_the_head_of_a_sparse_model_is_not_multiplied_in_float8(tmp_path: Path) -> None:
    config = transformers.BertConfig(
        vocab_size=VOCAB + 6,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=48,
        max_position_embeddings=64,
        pad_token_id=1,
    )
    folder = save(tmp_path / "splade", seeded(transformers.BertForMaskedLM, config))
    write_modules(
        folder,
        "Transformer",
        "SpladePooling",
        prefix="sentence_transformers.sparse_encoder.modules.",
    )
    log: list[str] = []
    device = rehearsed(Rehearsal(), settings(dtype="bfloat16", fp8=True), log)
    executor = device.build(read_card(folder), Weights.open(folder))
    head = executor._parts.model.heads["sparse"]
    assert isinstance(head._dense._weight, torch.Tensor)  # type: ignore[attr-defined]
    assert isinstance(head._decoder._weight, torch.Tensor)  # type: ignore[attr-defined]
    assert "float8: 4 matrices of bert" in log  # query-key-value, output, and two of the MLP
