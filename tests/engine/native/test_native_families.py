"""Every family the native executor knows, against transformers: tiny random checkpoints."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from native_models import cosine, hidden_states, load, save, sentence_modules
from safetensors.numpy import save_file

from hedgerow_engine.native.executor import NativeExecutor
from hedgerow_engine.native.passes import cut_batch
from hedgerow_engine.native.rungs import AVX2, AVX512BF16
from hedgerow_shared.ragged import RaggedBatch

# The best rung and the plainest one; kernels are tested on all.
RUNGS = (AVX512BF16, AVX2)
VOCAB, LONGEST = 90, 640
SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "intermediate_size": 96,
    "max_position_embeddings": LONGEST,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
}
GROUPED = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
DISTIL = {
    "dim": 64, "n_layers": 3, "n_heads": 2, "hidden_dim": 96, "hidden_size": None,
    "num_hidden_layers": None, "num_attention_heads": None, "intermediate_size": None,
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
}  # fmt: skip
TWO_ROPES = {
    "full_attention": {"rope_type": "default", "rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}
GEMMA = {**GROUPED, "sliding_window": 32, "query_pre_attn_scalar": 24, "sliding_window_pattern": 2}
MODERN = {"local_attention": 16, "cls_token_id": 0, "sep_token_id": 2}


@dataclass
class Family:
    """pooling: how its rows are made. patch: config keys to change after saving."""

    model: str
    config: dict[str, Any] = field(default_factory=dict)
    pooling: str = "mean"
    patch: dict[str, Any] = field(default_factory=dict)
    longest: int = LONGEST

    def write(self, folder: Path, kind: str = "Model", **more: Any) -> Any:
        shape = {k: v for k, v in (SHAPE | self.config | more).items() if v is not None}
        config = getattr(transformers, f"{self.model}Config")(**shape)
        model = getattr(transformers, f"{self.model}{kind}")(config)
        save(model, folder)
        file = folder / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | self.patch))
        if kind == "Model":
            sentence_modules(folder, {"pooling_mode": self.pooling})
        return model


FAMILIES = {
    "roberta": Family("Roberta", longest=LONGEST - 2),
    "camembert": Family("Camembert", longest=LONGEST - 2),
    "mpnet": Family("MPNet", longest=LONGEST - 2),
    "distilbert": Family("DistilBert", DISTIL),
    "bert tanh-gelu": Family("Bert", {"hidden_act": "gelu_pytorch_tanh"}, "cls"),
    "modernbert": Family("ModernBert", MODERN, "cls"),
    "gte": Family("Gte", {"type_vocab_size": 1}, "cls"),
    "gte two types": Family("Gte", {"type_vocab_size": 2}, "cls"),
    "nomic": Family("NomicBert", {"type_vocab_size": 2}),
    "qwen3": Family("Qwen3", GROUPED, "lasttoken"),
    "qwen3 both ways": Family("Qwen3", GROUPED, patch={"is_causal": False}),
    "qwen3 biases": Family("Qwen3", {**GROUPED, "attention_bias": True}, "lasttoken"),
    "qwen2": Family("Qwen2", GROUPED, "lasttoken"),
    "llama3": Family("Llama", {**GROUPED, "rope_parameters": LLAMA3}, "lasttoken"),
    "mistral windowed": Family("Mistral", {**GROUPED, "sliding_window": 24}, "lasttoken"),
    "eurobert": Family("EuroBert", {**GROUPED, "mask_token_id": 3}),
    "gemma3": Family(
        "Gemma3Text", {**GEMMA, "use_bidirectional_attention": True, "rope_parameters": TWO_ROPES}
    ),
    "gemma3 causal": Family("Gemma3Text", GEMMA, "lasttoken"),
}


@pytest.fixture(autouse=True)
def unpinned():
    """Two threads pin the thread that runs; give its cores back."""
    cores = os.sched_getaffinity(0)
    yield
    os.sched_setaffinity(0, cores)


def _gate(rung) -> float:
    return 0.999 if rung.dtype == "bfloat16" else 0.99999


def _pooled(hidden: np.ndarray, pooling: str) -> np.ndarray:
    return {"mean": hidden.mean(0), "cls": hidden[0], "lasttoken": hidden[-1]}[pooling]


@pytest.mark.parametrize("name", FAMILIES)
def test_family_equals_transformers_at_every_length(rung, tmp_path, name: str) -> None:
    family = FAMILIES[name]
    model = family.write(tmp_path)
    g = np.random.default_rng(0)
    sequences = [g.integers(3, VOCAB, n) for n in (1, 5, 17, 40, 64, 130, family.longest)]
    rows = load(tmp_path, rung=rung.name).run(RaggedBatch.of(sequences))
    for row, ids in zip(rows, sequences, strict=True):
        inputs = {"attention_mask": _both_ways(len(ids))} if family.patch else {}
        want = _pooled(hidden_states(model, ids, **inputs), family.pooling)
        assert cosine(row, want) >= _gate(rung), f"{len(ids)} tokens: {cosine(row, want):.6f}"


def _both_ways(length: int) -> torch.Tensor:
    """A mask that hides nothing, for models that are causal without one."""
    return torch.zeros(1, 1, length, length)


@pytest.mark.parametrize(
    ("family", "kind", "more"),
    [
        (Family("MPNet"), "ForSequenceClassification", {"num_labels": 2}),
        (Family("DistilBert", DISTIL), "ForSequenceClassification", {"num_labels": 1}),
        (Family("ModernBert", MODERN), "ForSequenceClassification", {"num_labels": 1}),
        (
            Family("ModernBert", MODERN),
            "ForSequenceClassification",
            {"num_labels": 3, "classifier_pooling": "mean"},
        ),
        (Family("Gte"), "ForSequenceClassification", {"num_labels": 1}),
        (Family("Qwen3", GROUPED), "ForSequenceClassification", {"num_labels": 2}),
    ],
    ids=["mpnet", "distilbert", "modernbert", "modernbert mean", "gte", "qwen3"],
)
def test_classifier_heads_equal_transformers(rung, tmp_path, family, kind, more) -> None:
    model = family.write(tmp_path, kind, **more)
    g = np.random.default_rng(1)
    sequences = [g.integers(3, VOCAB, n) for n in (2, 33)]
    got = load(tmp_path, rung=rung.name).launch(RaggedBatch.of(sequences), ("score",)).wait()
    for row, ids in zip(got.logits, sequences, strict=True):
        with torch.inference_mode():
            want = model(torch.tensor(ids)[None]).logits[0].numpy()
        np.testing.assert_allclose(row, want, atol=5e-2 if rung.dtype == "bfloat16" else 2e-4)


def test_a_reranker_that_answers_yes_or_no_scores_the_difference(rung, tmp_path) -> None:
    family = Family("Qwen3", {**GROUPED, "tie_word_embeddings": True})
    model = family.write(tmp_path, "ForCausalLM")
    modules = [("", "Transformer"), ("1_LogitScore", "LogitScore")]
    entries = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(modules)
    ]
    (tmp_path / "modules.json").write_text(json.dumps(entries))
    (tmp_path / "1_LogitScore").mkdir()
    tokens = {"true_token_id": 9, "false_token_id": 21}
    (tmp_path / "1_LogitScore" / "config.json").write_text(json.dumps(tokens))
    ids = np.arange(3, 30)
    executor = load(tmp_path, rung=rung.name)
    got = executor.launch(RaggedBatch.of([ids]), ("score",)).wait().logits
    with torch.inference_mode():
        logits = model(torch.tensor(ids)[None]).logits[0, -1].numpy()
    assert got.shape == (1, 1)
    assert got[0, 0] == pytest.approx(
        logits[9] - logits[21], abs=5e-2 if rung.dtype == "bfloat16" else 2e-4
    )


def test_a_model_that_quantises_itself_gives_its_own_whole_numbers(rung, tmp_path) -> None:
    patch = {"model_type": "bidirectional_pplx_qwen3"}
    model = Family("Qwen3", GROUPED, patch=patch).write(tmp_path)
    modules = json.loads((tmp_path / "modules.json").read_text())[:2]
    modules.append({"idx": 2, "name": "2", "path": "", "type": "st_quantize.FlexibleQuantizer"})
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    ids = np.arange(3, 40)
    row = load(tmp_path, rung=rung.name).run(RaggedBatch.of([ids]))[0]
    pooled = hidden_states(model, ids, attention_mask=_both_ways(len(ids))).mean(0)
    want = np.round(np.tanh(pooled) * 127)
    assert np.array_equal(row, np.round(row))
    assert np.abs(row - want).max() <= 2
    assert np.mean(row == want) > (0.6 if rung.dtype == "bfloat16" else 0.98)
    assert np.array_equal(
        np.signbit(row)[np.abs(pooled) > 0.02], (pooled < 0)[np.abs(pooled) > 0.02]
    )


def test_dense_modules_follow_the_pooling(rung, tmp_path) -> None:
    model = Family("Bert", pooling="mean").write(tmp_path)
    sentence_modules(tmp_path, {"pooling_mode": "mean"}, normalize=False)
    modules = json.loads((tmp_path / "modules.json").read_text())
    g = np.random.default_rng(4)
    expected: list[tuple[np.ndarray, np.ndarray | None, str]] = []
    for i, (size, width, bias, act) in enumerate(
        ((64, 96, True, "Tanh"), (96, 20, False, "Identity"))
    ):
        folder = tmp_path / f"{i + 2}_Dense"
        folder.mkdir()
        weight = (g.normal(size=(width, size)) / 8).astype(np.float32)
        tensors = {"linear.weight": weight}
        if bias:
            tensors["linear.bias"] = g.normal(size=width).astype(np.float32)
        save_file(tensors, folder / "model.safetensors")
        config = {"in_features": size, "out_features": width, "bias": bias}
        config["activation_function"] = f"torch.nn.modules.activation.{act}"
        (folder / "config.json").write_text(json.dumps(config))
        modules.append(
            {
                "idx": i + 2,
                "name": "",
                "path": folder.name,
                "type": "sentence_transformers.models.Dense",
            }
        )
        expected.append((weight, tensors.get("linear.bias"), act))
    modules.append(
        {
            "idx": 4,
            "name": "4",
            "path": "4_Normalize",
            "type": "sentence_transformers.models.Normalize",
        }
    )
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    ids = np.arange(3, 30)
    answer = load(tmp_path, rung=rung.name).launch(RaggedBatch.of([ids]), ("embed",)).wait()
    want = hidden_states(model, ids).mean(0)
    for weight, bias, act in expected:
        want = weight @ want + (0 if bias is None else bias)
        want = np.tanh(want) if act == "Tanh" else want
    assert answer.pooled.shape == (1, 20)
    np.testing.assert_allclose(
        answer.pooled[0], want, atol=3e-2 if rung.dtype == "bfloat16" else 1e-5
    )
    np.testing.assert_allclose(
        answer.unit[0], answer.pooled[0] / np.linalg.norm(answer.pooled[0]), rtol=1e-5
    )


@pytest.mark.parametrize("name", ["modernbert", "qwen3", "gemma3 causal", "bert tanh-gelu"])
@pytest.mark.parametrize("threads", [1, 2])
def test_leaving_out_unwanted_rows_of_the_last_layer_changes_no_byte(
    tmp_path, monkeypatch, name: str, threads: int
) -> None:
    family = FAMILIES[name]
    family.write(tmp_path)
    executor = load(tmp_path, threads=threads)
    g = np.random.default_rng(2)
    batch = RaggedBatch.of([g.integers(3, VOCAB, n) for n in (3, 64, 1, 130, 17, 200, 600)])
    if name != "modernbert":  # whose last layer here sees a neighbourhood only
        assert all(executor.can_narrow(cut) for cut in cut_batch(batch, 4096))
    narrow = executor.run(batch)
    monkeypatch.setattr(NativeExecutor, "can_narrow", lambda self, cut: False)
    assert np.array_equal(executor.run(batch), narrow)
    executor.close()


@pytest.mark.parametrize("window", [20, 64])
@pytest.mark.parametrize("threads", [1, 2])
def test_the_bytes_of_a_windowed_causal_model_do_not_depend_on_batch_mates(
    tmp_path, window: int, threads: int
) -> None:
    """A mate with a prompt has the last layer compute all rows, also those nobody asked for."""
    config = transformers.MistralConfig(
        hidden_size=64,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        num_hidden_layers=2,
        intermediate_size=64,
        vocab_size=VOCAB,
        sliding_window=window,
        max_position_embeddings=512,
    )
    save(transformers.MistralModel(config), tmp_path)
    pooling = {"word_embedding_dimension": 64, "pooling_mode": "lasttoken", "include_prompt": False}
    sentence_modules(tmp_path, pooling)
    executor = load(tmp_path, threads=threads)
    g = np.random.default_rng(3)
    for length in range(1, 150, 3):
        ids, mate = g.integers(3, VOCAB, length), g.integers(3, VOCAB, 30)
        alone = executor.run(RaggedBatch.of([ids]))[0]
        batch = RaggedBatch.of([ids, mate])
        beside = executor.run(replace(batch, prompt_len=np.array([0, 3], np.int32)))[0]
        assert alone.tobytes() == beside.tobytes() == executor.run(batch)[0].tobytes(), length
    executor.close()


def test_the_bytes_of_a_grouped_causal_model_do_not_depend_on_batch_mates(tmp_path) -> None:
    FAMILIES["qwen3"].write(tmp_path)
    executor = load(tmp_path)
    g = np.random.default_rng(2)
    sequences = [g.integers(3, VOCAB, n) for n in (3, 64, 1, 600, 17, 200)]
    alone = np.concatenate([executor.run(RaggedBatch.of([s])) for s in sequences])
    for budget in (64, 4096):
        executor.pass_tokens = budget
        assert np.array_equal(executor.run(RaggedBatch.of(sequences)), alone)
