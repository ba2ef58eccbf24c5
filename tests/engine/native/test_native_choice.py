"""What runs natively and what does not, decided before anything is compiled."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from native_models import load, save, sentence_modules
from transformers import BertConfig, BertModel, Qwen3Config, Qwen3Model

from hedgerow_engine.load import EngineSettings, ModelSpec, load_engines
from hedgerow_engine.native import build as build_module
from hedgerow_engine.native.build import supported
from hedgerow_engine.native.compiler import compile_unit, host_features
from hedgerow_engine.native.families import UnsupportedError
from hedgerow_engine.native.ir import Unit
from hedgerow_engine.native.rungs import AVX2, AVX512, AVX512BF16, NEON_BF16, Rung, choose_rung
from hedgerow_shared.errors import StartupError
from hedgerow_shared.modelcard import read_card

EVERYTHING = {name: True for rung in (AVX512BF16, AVX2) for name in rung.features}
x86 = pytest.mark.skipif(
    build_module.choose_rung(EVERYTHING) is not AVX512BF16, reason="rungs of x86-64"
)


def without(*names: str) -> dict[str, bool]:
    return {name: name not in names for name in EVERYTHING}


@x86
@pytest.mark.parametrize(
    ("features", "dtype", "expected"),
    [
        (EVERYTHING, "auto", AVX512BF16),
        (EVERYTHING, "bfloat16", AVX512BF16),
        (EVERYTHING, "float32", AVX512),
        (without("avx512bf16"), "auto", AVX512),
        (without("avx512bf16", "avx512vl"), "auto", AVX2),
    ],
)
def test_the_best_rung_of_the_cpu_and_dtype_is_taken(features, dtype: str, expected: Rung) -> None:
    assert choose_rung(features, dtype) is expected


@x86
@pytest.mark.parametrize(
    ("features", "dtype", "forced", "reason"),
    [
        ({}, "auto", None, "avx2 needs avx2, fma"),
        (without("avx512bf16"), "bfloat16", None, "avx512bf16 needs avx512bf16"),
        (without("avx512bf16"), "auto", "avx512bf16", "needs avx512bf16"),
        (EVERYTHING, "float16", None, "no native kernels for float16"),
        (EVERYTHING, "bfloat16", "avx2", "the native rung avx2 computes in float32, not in bf"),
        (EVERYTHING, "auto", "neonbf16", "a aarch64 CPU"),
    ],
)
def test_a_cpu_without_the_instructions_gets_a_reason(features, dtype, forced, reason) -> None:
    found = choose_rung(features, dtype, forced)
    assert isinstance(found, str) and reason in found


def test_code_for_missing_instructions_is_never_compiled(monkeypatch) -> None:
    with pytest.raises(AssertionError):
        compile_unit(Unit(NEON_BF16 if host_features().get("avx2") else AVX2))


def _bert(folder, **config):
    shape = {
        "hidden_size": 64,
        "num_attention_heads": 2,
        "num_hidden_layers": 1,
        "intermediate_size": 64,
        "vocab_size": 50,
    }
    model = BertModel(BertConfig(**shape | config), add_pooling_layer=False)
    return save(model, folder)


def test_a_model_is_refused_with_the_reason_and_without_reading_weights(tmp_path) -> None:
    folder = _bert(tmp_path)
    (folder / "model.safetensors").unlink()
    assert supported(read_card(folder)) is None
    config = json.loads((folder / "config.json").read_text())
    for change, reason in (
        ({"model_type": "xlnet"}, "model_type 'xlnet' has no native program"),
        ({"hidden_act": "mish"}, "activation 'mish'"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type"),
        ({"num_attention_heads": 4}, "head size 16"),
        ({"intermediate_size": 72}, "intermediate_size 72 is not a multiple of"),
        ({"auto_map": {"AutoModel": "jinaai/jina-bert-v2--modeling.JinaBertModel"}}, "JinaBERT"),
    ):
        (folder / "config.json").write_text(json.dumps(config | change))
        assert reason in str(supported(read_card(folder), dtype="bfloat16")), change


def test_an_old_llvmlite_is_a_reason_not_a_crash(tmp_path, monkeypatch) -> None:
    folder = _bert(tmp_path)
    monkeypatch.setattr(build_module.llvmlite, "__version__", "0.44.0")
    assert "llvmlite 0.44.0 is too old" in str(supported(read_card(folder)))
    monkeypatch.setattr(build_module.llvmlite, "__version__", "0.51.0rc1")
    assert supported(read_card(folder)) is None


def test_a_program_that_does_not_compile_is_a_reason_not_a_crash(tmp_path, monkeypatch) -> None:
    def refuse(unit):
        raise RuntimeError("LLVM IR parsing error\n<string>:1: expected type")

    monkeypatch.setenv("HEDGEROW_CACHE_DIR", str(tmp_path / "empty"))
    monkeypatch.setattr(build_module, "compile_unit", refuse)
    with pytest.raises(UnsupportedError, match="LLVM IR parsing error"):
        load(_bert(tmp_path / "model"))


def test_loading_what_is_not_supported_raises_the_same_reason(tmp_path) -> None:
    folder = _bert(tmp_path, num_attention_heads=4)
    with pytest.raises(UnsupportedError, match="head size 16"):
        load(folder, dtype="bfloat16")


def test_a_decoder_without_pooling_is_left_to_others(tmp_path) -> None:
    config = Qwen3Config(
        hidden_size=64,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        num_hidden_layers=1,
        intermediate_size=64,
        vocab_size=50,
    )
    folder = save(Qwen3Model(config), tmp_path)
    assert "no Pooling" in str(supported(read_card(folder)))
    sentence_modules(folder, {"pooling_mode": "lasttoken"})
    assert supported(read_card(folder)) is None


def test_a_forced_rung_is_used_and_named(tmp_path, monkeypatch) -> None:
    folder = _bert(tmp_path)
    monkeypatch.setenv("HEDGEROW_NATIVE_RUNG", "avx2")
    executor = load(folder)
    assert executor.name == "native avx2"
    assert executor.dtype == "float32"
    assert executor.numerics == "native-avx2-1"


@pytest.mark.parametrize("name", ["avx1", "AVX2", " avx2"])
def test_a_mistyped_rung_is_refused_with_the_names_there_are(tmp_path, monkeypatch, name) -> None:
    folder = _bert(tmp_path)
    monkeypatch.setenv("HEDGEROW_NATIVE_RUNG", name)
    spec, settings = ModelSpec(alias="m", folder=folder), EngineSettings(device="cpu", warmup_s=0)
    with pytest.raises(StartupError, match=r"HEDGEROW_NATIVE_RUNG=.*use one of avx512bf16, avx512"):
        load_engines([spec], settings, log=lambda line: None)


def test_the_native_executor_imports_no_torch() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import hedgerow_engine.native.executor, hedgerow_engine.native.families"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
