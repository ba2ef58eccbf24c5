"""Scores, prompts, Dense modules, spans, int8, sparse and token vectors, against their oracles."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from hedgerow_engine.ptfile import read_pt
from hedgerow_shared.errors import StartupError
from hedgerow_shared.ragged import Lane, OutputSpec, RaggedBatch
from tests.engine.conftest import OpenEngine, cosines
from tests.engine.tiny import (
    embed,
    hidden_of,
    logits_of,
    patch_json,
    patch_json_dir,
    rows,
    save,
    seeded,
    token_batches,
    transformers,
    write_modules,
)

VOCAB = 80
SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "max_position_embeddings": 130,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
}
QWEN = SHAPE | {"num_key_value_heads": 2, "head_dim": 16, "tie_word_embeddings": True}
SCORE = OutputSpec(task="score")


def build(name: str, head: str, **config: Any) -> Any:
    kind = getattr(transformers, f"{name}Config")(**{**SHAPE, **config})
    return seeded(getattr(transformers, f"{name}{head}"), kind)


SCORERS = [
    ("Bert", {}, 1),
    ("Roberta", {}, 1),
    ("XLMRoberta", {"type_vocab_size": 1}, 3),
    ("MPNet", {}, 2),
    ("Camembert", {}, 1),
    ("ModernBert", {"cls_token_id": 0, "sep_token_id": 2, "local_attention": 16}, 1),
    (
        "ModernBert",
        {
            "cls_token_id": 0,
            "sep_token_id": 2,
            "classifier_pooling": "mean",
            "classifier_bias": True,
        },
        2,
    ),
    (
        "DebertaV2",
        {
            "relative_attention": True,
            "position_buckets": 16,
            "pos_att_type": ["p2c", "c2p"],
            "share_att_key": True,
            "norm_rel_ebd": "layer_norm",
            "position_biased_input": False,
            "type_vocab_size": 0,
        },
        1,
    ),
    ("Gte", {}, 1),
    ("Qwen3", QWEN, 1),
    ("Qwen2", QWEN, 2),
    ("Llama", QWEN, 1),
]


@pytest.mark.parametrize(
    ("name", "config", "labels"),
    SCORERS,
    ids=[f"{n}-{k}-{i}" for i, (n, _, k) in enumerate(SCORERS)],
)
def test_classification_heads_give_transformers_logits(
    tmp_path: Path, open_engine: OpenEngine, name: str, config: dict[str, Any], labels: int
) -> None:
    model = build(name, "ForSequenceClassification", **config, num_labels=labels)
    engine = open_engine(save(tmp_path / "m", model))
    sequences = token_batches(VOCAB)
    want = np.stack([logits_of(model, ids) for ids in sequences])
    for task in ("score", "classify"):
        got = np.stack([row[0] for row in rows(engine, sequences, OutputSpec(task=task))])
        assert got.shape == (len(sequences), labels)
        assert np.allclose(got, want, atol=2e-4 * max(1.0, np.abs(want).max()))


def test_the_second_text_of_a_pair_has_token_type_one(
    tmp_path: Path, open_engine: OpenEngine
) -> None:
    model = build("Bert", "ForSequenceClassification", num_labels=1)
    engine = open_engine(save(tmp_path / "m", model))
    sequences = token_batches(VOCAB, (9, 14))
    starts = [4, 10]
    batch = RaggedBatch.of(sequences, SCORE)
    batch = RaggedBatch(
        batch.input_ids, batch.cu_seqlens, batch.outputs, pair_start=np.array(starts, np.int32)
    )
    got = [row[0] for row in engine.step(batch, Lane.RERANK).result().rows]
    for row, ids, start in zip(got, sequences, starts):
        types = [0] * start + [1] * (len(ids) - start)
        assert np.allclose(row, logits_of(model, ids, token_type_ids=types), atol=1e-4)
        assert not np.allclose(row, logits_of(model, ids), atol=1e-3)


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "own head"])
def test_yes_and_no_logits_become_a_score(
    tmp_path: Path, open_engine: OpenEngine, tied: bool
) -> None:
    model = build("Qwen3", "ForCausalLM", **{**QWEN, "tie_word_embeddings": tied})
    folder = save(tmp_path / "m", model)
    write_modules(
        folder, "Transformer", "LogitScore", prefix="sentence_transformers.cross_encoder.modules."
    )
    patch_json_dir(folder / "1_LogitScore", true_token_id=9, false_token_id=21)
    sequences = token_batches(VOCAB)
    want = [logits_of(model, ids)[-1] for ids in sequences]
    got = rows(open_engine(folder), sequences, SCORE)
    for row, logits in zip(got, want):
        assert row[0] == pytest.approx([logits[9] - logits[21]], abs=1e-3)


def test_qwen3_reranker_as_its_authors_publish_it_is_scored_by_yes_and_no(
    tmp_path: Path, open_engine: OpenEngine
) -> None:
    model = build("Qwen3", "ForCausalLM", **QWEN)
    folder = save(tmp_path / "m", model)
    vocab = {"yes": 9, "no": 21}
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"type": "BPE", "vocab": vocab}}))
    (folder / "README.md").write_text(
        "---\nlicense: apache-2.0\npipeline_tag: text-ranking\n---\n# A reranker\n"
    )
    sequences = token_batches(VOCAB)
    want = [logits_of(model, ids)[-1] for ids in sequences]
    got = rows(open_engine(folder), sequences, SCORE)
    for row, logits in zip(got, want):
        assert row[0] == pytest.approx([logits[9] - logits[21]], abs=1e-3)


@pytest.mark.parametrize(
    "readme",
    [
        "# No header\npipeline_tag: text-ranking\n",
        "---\npipeline_tag: text-generation\n---\npipeline_tag: text-ranking\n",
    ],
)
def test_only_the_header_of_a_readme_says_what_a_model_is_for(
    tmp_path: Path, open_engine: OpenEngine, readme: str
) -> None:
    folder = save(tmp_path / "m", build("Qwen3", "ForCausalLM", **QWEN))
    (folder / "README.md").write_text(readme)
    with pytest.raises(StartupError, match=r"modules\.json: missing"):
        open_engine(folder)


def test_a_ranker_without_the_two_words_is_refused_by_name(
    tmp_path: Path, open_engine: OpenEngine
) -> None:
    folder = save(tmp_path / "m", build("Qwen3", "ForCausalLM", **QWEN))
    (folder / "README.md").write_text("---\npipeline_tag: text-ranking\n---\n")
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {"yes": 9}}}))
    with pytest.raises(StartupError, match=r"tokenizer\.json: model\.vocab has no 'yes' and 'no'"):
        open_engine(folder)


def test_a_decoder_without_modules_is_refused(tmp_path: Path, open_engine: OpenEngine) -> None:
    folder = save(tmp_path / "m", build("Qwen3", "ForCausalLM", **QWEN))
    with pytest.raises(Exception, match=r"modules\.json: missing.*Pooling or a LogitScore"):
        open_engine(folder)


def pplx(tmp_path: Path) -> tuple[Any, Path]:
    """A Qwen3 that looks both ways: transformers builds it by switching the causal mask off."""
    model = build("Qwen3", "Model", **QWEN)
    folder = save(
        tmp_path / "m",
        model,
        model_type="bidirectional_pplx_qwen3",
        use_bidirectional_attention=True,
    )
    write_modules(folder, "Transformer", "Pooling")
    modules = json.loads((folder / "modules.json").read_text())
    modules.append({"idx": 2, "name": "2", "path": "", "type": "st_quantize.FlexibleQuantizer"})
    (folder / "modules.json").write_text(json.dumps(modules))
    return model, folder


@torch.no_grad()
def both_ways(model: Any, ids: list[int]) -> np.ndarray:
    seen = torch.zeros(1, 1, len(ids), len(ids))
    out = model(input_ids=torch.tensor([ids]), attention_mask={"full_attention": seen})
    return out.last_hidden_state[0].numpy()


def test_pplx_embed_gives_its_own_int8_and_sign_bits(
    tmp_path: Path, open_engine: OpenEngine
) -> None:
    model, folder = pplx(tmp_path)
    sequences = token_batches(VOCAB)
    pooled = np.stack([both_ways(model, ids).mean(0) for ids in sequences])
    want = np.round(np.tanh(pooled) * 127).astype(np.int8)
    spec = OutputSpec(dtypes=("int8", "binary", "float32"), dimensions=(64, 32))
    got = rows(open_engine(folder), sequences, spec)
    for row, bytes_, raw in zip(got, want, pooled):
        assert np.mean(row[0] == bytes_) > 0.99 and np.abs(row[0].astype(int) - bytes_).max() <= 1
        assert np.array_equal(row[1], row[0][:32])
        assert np.array_equal(np.unpackbits(row[2]), raw >= 0)
        assert np.array_equal(row[4], row[0].astype(np.float32))


def test_spans_of_one_pass_are_pooled_apart(tmp_path: Path, open_engine: OpenEngine) -> None:
    model, folder = pplx(tmp_path)
    sequences = token_batches(VOCAB, (30, 8))
    batch = RaggedBatch.of(sequences, OutputSpec(dtypes=("int8",)))
    batch = RaggedBatch(
        batch.input_ids,
        batch.cu_seqlens,
        batch.outputs,
        spans=np.array([[0, 0, 10], [0, 11, 30]], np.int32),
    )
    late, plain = (row[0] for row in open_engine(folder).step(batch, Lane.BULK).result().rows)
    hidden = both_ways(model, sequences[0])
    want = np.stack([hidden[0:10].mean(0), hidden[11:30].mean(0)])
    assert late.shape == (2, 64) and plain.shape == (64,)
    assert np.abs(late - np.round(np.tanh(want) * 127)).max() <= 1


def st_rows(folder: Path, sequences: list[list[int]], **features: Any) -> np.ndarray:
    """sentence-transformers' modules after the Transformer, run on transformers' own states."""
    from sentence_transformers.sentence_transformer.modules import Pooling

    module = Pooling.load(str(folder), subfolder="1_Pooling")
    model = transformers.AutoModel.from_pretrained(folder)
    out = []
    for ids in sequences:
        states = torch.from_numpy(hidden_of(model, ids))[None]
        mask = torch.ones(1, len(ids)).long()
        out.append(
            module({"token_embeddings": states, "attention_mask": mask} | features)[
                "sentence_embedding"
            ]
        )
    return torch.cat(out).numpy()


MODES = ["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken", ["cls", "mean"]]


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_every_pooling_is_that_of_sentence_transformers(
    tmp_path: Path, open_engine: OpenEngine, mode: str | list[str]
) -> None:
    folder = save(tmp_path / "m", build("Bert", "Model"))
    write_modules(
        folder, "Transformer", "Pooling", pooling={"embedding_dimension": 64, "pooling_mode": mode}
    )
    sequences = token_batches(VOCAB)
    engine = open_engine(folder)
    for _ in range(3):
        got = embed(engine, sequences)
    assert np.allclose(got, st_rows(folder, sequences), atol=1e-4)


def test_a_prompt_is_left_out_of_the_mean(tmp_path: Path, open_engine: OpenEngine) -> None:
    folder = save(tmp_path / "m", build("Bert", "Model"))
    write_modules(
        folder,
        "Transformer",
        "Pooling",
        pooling={
            "word_embedding_dimension": 64,
            "pooling_mode_mean_tokens": True,
            "include_prompt": False,
        },
    )
    sequences = token_batches(VOCAB, (12, 20))
    batch = RaggedBatch.of(sequences)
    batch = RaggedBatch(
        batch.input_ids, batch.cu_seqlens, batch.outputs, prompt_len=np.array([5, 5], np.int32)
    )
    got = np.stack([r[0] for r in open_engine(folder).step(batch, Lane.QUERY).result().rows])
    assert np.allclose(got, st_rows(folder, sequences, prompt_length=5), atol=1e-4)
    assert not np.allclose(got, st_rows(folder, sequences), atol=1e-2)


def test_dense_modules_run_in_their_order(tmp_path: Path, open_engine: OpenEngine) -> None:
    from sentence_transformers.base.modules import Dense

    model = build("Gemma3Text", "Model", **QWEN, use_bidirectional_attention=True)
    folder = save(tmp_path / "m", model)
    write_modules(folder, "Transformer", "Pooling", "Dense", "Dense", "Normalize")
    torch.manual_seed(3)
    layers = [Dense(64, 96, bias=False, activation_function=torch.nn.Identity()), Dense(96, 48)]
    for i, layer in enumerate(layers):
        (folder / f"{i + 2}_Dense").mkdir()
        layer.save(str(folder / f"{i + 2}_Dense"))
    sequences = token_batches(VOCAB)
    features = {
        "sentence_embedding": torch.from_numpy(
            np.stack([hidden_of(model, i).mean(0) for i in sequences])
        )
    }
    with torch.no_grad():
        for layer in layers:
            features = layer(features)
    want = torch.nn.functional.normalize(features["sentence_embedding"]).numpy()
    engine = open_engine(folder)
    assert engine.card.dimension == 48
    assert np.allclose(embed(engine, sequences), want, atol=1e-5)


@pytest.mark.parametrize("name", ["Bert", "XLMRoberta", "DistilBert"])
def test_splade_weights_are_those_of_the_language_model_head(
    tmp_path: Path, open_engine: OpenEngine, name: str
) -> None:
    config = (
        {"dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 96} if name == "DistilBert" else {}
    )
    model = build(name, "ForMaskedLM", **config)
    folder = save(tmp_path / "m", model)
    write_modules(
        folder,
        "Transformer",
        "SpladePooling",
        prefix="sentence_transformers.sparse_encoder.modules.",
    )
    sequences = token_batches(VOCAB)
    got = rows(open_engine(folder), sequences, OutputSpec(task="sparse"))
    for (ids, weights), sequence in zip(got, sequences):
        want = np.log1p(np.maximum(logits_of(model, sequence), 0)).max(0)
        assert np.array_equal(ids, np.flatnonzero(want > 0))
        assert np.allclose(weights, want[ids], atol=1e-4)


def test_colbert_gives_a_unit_vector_per_token(tmp_path: Path, open_engine: OpenEngine) -> None:
    from sentence_transformers.base.modules import Dense

    model = build("ModernBert", "Model", cls_token_id=0, sep_token_id=2, local_attention=16)
    folder = save(tmp_path / "m", model)
    write_modules(folder, "Transformer", "Dense", "MultiVectorMask", "Normalize")
    dense = Dense(
        64,
        16,
        bias=False,
        activation_function=torch.nn.Identity(),
        module_input_name="token_embeddings",
    )
    (folder / "1_Dense").mkdir()
    dense.save(str(folder / "1_Dense"))
    sequences = token_batches(VOCAB)
    got = rows(
        open_engine(folder), sequences, OutputSpec(task="multivector", dtypes=("float32", "int8"))
    )
    for row, ids in zip(got, sequences):
        states = torch.from_numpy(hidden_of(model, ids))
        want = torch.nn.functional.normalize(dense.linear(states), dim=-1).detach().numpy()
        assert row[0].shape == (len(ids), 16) and row[1].dtype == np.int8
        assert np.allclose(row[0], want, atol=1e-5)


@pytest.mark.parametrize("form", ["safetensors", "pt", "pt in half precision"])
def test_bge_m3_gives_dense_sparse_and_token_vectors_from_one_pass(
    tmp_path: Path, open_engine: OpenEngine, form: str
) -> None:
    model = build("XLMRoberta", "Model", type_vocab_size=1)
    folder = save(tmp_path / "m", model)
    write_modules(
        folder, "Transformer", "Pooling", "Normalize", pooling={"pooling_mode_cls_token": True}
    )
    patch_json(
        folder / "tokenizer.json",
        model={"vocab": [["a", 0.0]] * VOCAB, "unk_id": 3},
        added_tokens=[],
    )
    torch.manual_seed(5)
    sparse, colbert = torch.nn.Linear(64, 1), torch.nn.Linear(64, 64)
    if form.endswith("precision"):
        sparse, colbert = sparse.half(), colbert.half()
    for name, linear in (("sparse", sparse), ("colbert", colbert)):
        if form == "safetensors":
            save_file(linear.state_dict(), folder / f"{name}_linear.safetensors")
        else:
            torch.save(linear.state_dict(), folder / f"{name}_linear.pt")
    sparse, colbert = sparse.float(), colbert.float()
    ids = [0, 7, 9, 7, 3, 11, 2]
    batch = RaggedBatch(
        np.array(ids * 3, np.int32),
        np.array([0, 7, 14, 21], np.int32),
        (OutputSpec(), OutputSpec(task="sparse"), OutputSpec(task="multivector")),
    )
    engine = open_engine(folder)
    dense, (found, weights), (vectors,) = engine.step(batch, Lane.QUERY).result().rows
    states = torch.from_numpy(hidden_of(model, ids))
    assert cosines(dense[0], states[0].numpy()) > 0.999999
    per_token = torch.relu(sparse(states)).detach().numpy()[:, 0]
    want = {7: max(per_token[1], per_token[3]), 9: per_token[2], 11: per_token[5]}
    assert dict(zip(found.tolist(), weights.tolist())) == pytest.approx(
        {k: v for k, v in want.items() if v > 0}, abs=1e-5
    )
    expect = torch.nn.functional.normalize(colbert(states[1:]), dim=-1).detach().numpy()
    assert np.allclose(vectors, expect, atol=1e-5)
    assert engine.stats()["batches"] == 1


class Evil:
    def __reduce__(self) -> Any:
        return print, ("this must never run",)


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (Evil(), r"wants to call \w+\.print"),
        ([1, 2], "no dictionary of tensors"),
        ({"weight": torch.zeros(4, 3).T}, "not stored in order"),
        ({"weight": torch.zeros(3, dtype=torch.int64)}, "LongStorage"),
    ],
)
def test_a_head_file_that_is_more_than_tensors_is_refused_and_not_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: Any, found: str
) -> None:
    file = tmp_path / "sparse_linear.pt"
    torch.save(content, file)
    with pytest.raises(StartupError, match=found) as raised:
        read_pt(file)
    assert "sparse_linear.safetensors" in str(raised.value) and "\n" not in str(raised.value)
    assert capsys.readouterr().out == ""


def test_a_head_file_that_is_damaged_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "sparse_linear.pt"
    torch.save({"weight": torch.zeros(1, 64)}, file)
    whole = file.read_bytes()
    for damage in (b"", whole[: len(whole) // 2], b"PK" + whole[2:200], b"no zip at all"):
        file.write_bytes(damage)
        with pytest.raises(StartupError, match=r"sparse_linear\.pt: not read"):
            read_pt(file)


def test_a_head_file_gives_the_tensors_that_torch_wrote(tmp_path: Path) -> None:
    file = tmp_path / "sparse_linear.pt"
    torch.manual_seed(3)
    state = torch.nn.Linear(64, 3).bfloat16().state_dict()
    state["slice"] = torch.randn(10, 4)[2:5]
    torch.save(state, file)
    found = read_pt(file)
    for name, tensor in state.items():
        assert np.array_equal(found[name].float32(), tensor.float().numpy())
