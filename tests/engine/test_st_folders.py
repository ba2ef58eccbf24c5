"""What sentence-transformers writes and where: lengths, sub-folders, scorers; it is the oracle."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import Pooling

from hedgerow_engine.load import EngineSettings, ModelSpec, load_engines
from hedgerow_shared.errors import StartupError
from hedgerow_shared.modelcard import read_card
from tests.engine.config_cases import BOTH, change
from tests.engine.conftest import OpenEngine, cosines
from tests.engine.st_folders import LONG, ids_of, tiny, write_tokenizer
from tests.engine.tiny import embed, patch_json, patch_json_dir, write_modules

MEAN = {"word_embedding_dimension": 64, "pooling_mode_mean_tokens": True}


def saved(tmp_path: Path, **settings: Any) -> tuple[Any, Path]:
    """A SentenceTransformer of a tiny BERT with mean pooling, saved and opened again."""
    source = tiny(tmp_path / "source")
    model = SentenceTransformer(
        modules=[Transformer(str(source)), Pooling(64, "mean")], device="cpu"
    )
    for key, value in settings.items():
        setattr(model, key, value)
    model.save_pretrained(str(tmp_path / "m"))
    return SentenceTransformer(str(tmp_path / "m"), device="cpu"), tmp_path / "m"


@pytest.mark.parametrize("executor", BOTH)
def test_a_length_set_in_sentence_transformers_is_kept_by_its_folder(
    tmp_path: Path, open_engine: OpenEngine, executor: str
) -> None:
    model, folder = saved(tmp_path, max_seq_length=30)
    assert "max_seq_length" not in (folder / "sentence_bert_config.json").read_text()
    engine = open_engine(folder, cpu_executor=executor)
    assert engine.max_seq_len == model.max_seq_length == 30
    got = embed(engine, [ids_of(LONG, engine.max_seq_len)])
    assert cosines(got, model.encode([LONG])).min() > 0.99999


LENGTHS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "none": ({}, {}),
    "of the tokenizer": ({}, {"model_max_length": 40}),
    "of the tokenizer, older name": ({}, {"max_len": 40}),
    "null hides the older name": ({}, {"model_max_length": None, "max_len": 40}),
    "beyond the positions": ({}, {"model_max_length": 131072}),
    "no limit": ({}, {"model_max_length": 10**30}),
    "no limit, as a float": ({}, {"model_max_length": 1e30}),
    "of the transformer's file": ({"max_seq_length": 20}, {"model_max_length": 40}),
    "longer in the transformer's file": ({"max_seq_length": 50}, {"model_max_length": 40}),
    "null in the transformer's file": ({"max_seq_length": None}, {"model_max_length": 40}),
    "in the tokenizer's arguments": (
        {"max_seq_length": 20, "tokenizer_args": {"model_max_length": 25}},
        {"model_max_length": 40},
    ),
}


@pytest.mark.parametrize("kind", ["modules", "plain", "cross-encoder"])
@pytest.mark.parametrize(("sbert", "tokenizer"), LENGTHS.values(), ids=LENGTHS.keys())
def test_a_length_is_read_where_sentence_transformers_reads_it(
    tmp_path: Path, kind: str, sbert: dict[str, Any], tokenizer: dict[str, Any]
) -> None:
    head = "ForSequenceClassification" if kind == "cross-encoder" else "Model"
    folder = tiny(tmp_path / "m", head=head)
    change(folder / "tokenizer_config.json", "model_max_length", **tokenizer)
    if kind == "modules":
        write_modules(folder, "Transformer", "Pooling", pooling=MEAN)
    if sbert:
        (folder / "sentence_bert_config.json").write_text(json.dumps(sbert))
    model = CrossEncoder if kind == "cross-encoder" else SentenceTransformer
    expect = model(str(folder), device="cpu").max_seq_length
    assert read_card(folder).max_seq_len == expect


@pytest.mark.parametrize("key", ["text", "common"])
@pytest.mark.parametrize("length", [7, 30])
def test_the_length_of_one_call_counts_before_all_others(
    tmp_path: Path, key: str, length: int
) -> None:
    folder = tiny(tmp_path / "m")
    write_modules(folder, "Transformer", "Pooling", pooling=MEAN)
    patch_json(
        folder / "sentence_bert_config.json",
        max_seq_length=20,
        processing_kwargs={key: {"max_length": length}},
    )
    model = SentenceTransformer(str(folder), device="cpu")
    assert read_card(folder).max_seq_len == model.preprocess([LONG])["input_ids"].shape[1]


@pytest.mark.parametrize("length", [0, -1])
def test_a_length_that_is_none_is_refused_by_its_key(tmp_path: Path, length: int) -> None:
    folder = tiny(tmp_path / "m")
    change(folder / "tokenizer_config.json", model_max_length=length)
    with pytest.raises(StartupError, match=r"tokenizer_config\.json: model_max_length must be"):
        read_card(folder)


@pytest.mark.parametrize("executor", BOTH)
def test_a_transformer_in_a_folder_of_its_own_is_the_one_that_runs(
    tmp_path: Path, open_engine: OpenEngine, executor: str
) -> None:
    folder, inner = tmp_path / "m", tmp_path / "m" / "0_Transformer"
    tiny(inner)
    write_tokenizer(inner, model_max_length=30)
    write_modules(folder, "Transformer", "Pooling", pooling=MEAN)
    modules = json.loads((folder / "modules.json").read_text())
    modules[0]["path"] = "0_Transformer"
    (folder / "modules.json").write_text(json.dumps(modules))
    # What lies above is another model, as of a folder that was trained twice.
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(inner / name, folder / name)
    other = {k: v * 1.5 for k, v in load_file(inner / "model.safetensors").items()}
    save_file(other, folder / "model.safetensors", metadata={"format": "pt"})
    model = SentenceTransformer(str(folder), device="cpu")
    engine = open_engine(folder, cpu_executor=executor)
    assert engine.max_seq_len == model.max_seq_length == 30
    got = embed(engine, [ids_of("w1 w5 w9"), ids_of(LONG, 30)])
    assert cosines(got, model.encode(["w1 w5 w9", LONG])).min() > 0.99999


@pytest.mark.parametrize("executor", BOTH)
@pytest.mark.parametrize(
    ("family", "config"),
    [("Bert", {}), ("Roberta", {}), ("ModernBert", {}), ("Gte", {}), ("Qwen3", {}), ("Llama", {})],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_an_embedder_saved_from_a_classifier_embeds(
    tmp_path: Path, open_engine: OpenEngine, executor: str, family: str, config: dict[str, Any]
) -> None:
    folder = tiny(tmp_path / "m", family, "ForSequenceClassification", num_labels=2, **config)
    write_modules(folder, "Transformer", "Pooling", pooling=MEAN)
    model = SentenceTransformer(str(folder), device="cpu")
    engine = open_engine(folder, cpu_executor=executor)
    got = embed(engine, [ids_of("w1 w5 w9"), ids_of("w3")])
    assert cosines(got, model.encode(["w1 w5 w9", "w3"])).min() > 0.99999


BESIDE: dict[str, tuple[str, str, tuple[str, ...], str]] = {
    "pooling, then logits": ("Qwen3", "ForCausalLM", ("Pooling", "LogitScore"), "pooling"),
    "logits, then normalize": ("Qwen3", "ForCausalLM", ("LogitScore", "Normalize"), "normalize"),
    "logits twice": ("Qwen3", "ForCausalLM", ("LogitScore", "LogitScore"), "a second logit_score"),
    "normalize": ("Bert", "ForSequenceClassification", ("Normalize",), "normalize"),
    "quantizer": ("Bert", "ForSequenceClassification", ("FlexibleQuantizer",), "quantize"),
}


@pytest.mark.parametrize(("family", "head", "kinds", "named"), BESIDE.values(), ids=BESIDE.keys())
def test_a_scorer_with_a_module_that_would_be_left_out_is_refused(
    tmp_path: Path, family: str, head: str, kinds: tuple[str, ...], named: str
) -> None:
    folder = tiny(tmp_path / "m", family, head)
    write_modules(folder, "Transformer", *kinds)
    for i, kind in enumerate(kinds, 1):
        if kind == "LogitScore":
            patch_json_dir(folder / f"{i}_LogitScore", true_token_id=9, false_token_id=21)
    with pytest.raises(StartupError, match=rf"modules\.json: the model scores, and {named}"):
        read_card(folder)


def test_logits_read_elsewhere_are_refused(tmp_path: Path) -> None:
    folder = tiny(tmp_path / "m", "Qwen3", "ForCausalLM")
    write_modules(folder, "Transformer", "LogitScore")
    patch_json_dir(folder / "1_LogitScore", true_token_id=9, module_input_name="scores")
    with pytest.raises(StartupError, match=r"config\.json: module_input_name must be causal_l"):
        read_card(folder)


def test_a_cross_encoder_that_sentence_transformers_saved_scores_as_it_does(
    tmp_path: Path, open_engine: OpenEngine
) -> None:
    source = tiny(tmp_path / "source", head="ForSequenceClassification", num_labels=1)
    CrossEncoder(str(source), device="cpu").save_pretrained(str(tmp_path / "m"))
    assert len(json.loads((tmp_path / "m" / "modules.json").read_text())) == 1
    assert open_engine(tmp_path / "m").card.is_scorer


@pytest.mark.parametrize("tied", [True, False, None])
def test_logits_come_from_the_embeddings_only_where_the_config_ties_them(
    tmp_path: Path, open_engine: OpenEngine, tied: bool | None
) -> None:
    folder = tiny(tmp_path / "m", "Qwen3", "ForCausalLM", tie_word_embeddings=False)
    write_modules(folder, "Transformer", "LogitScore")
    patch_json_dir(folder / "1_LogitScore", true_token_id=9, false_token_id=21)
    tensors = load_file(folder / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    patch_json(folder / "config.json", tie_word_embeddings=tied)
    if tied:
        assert open_engine(folder).card.is_scorer
        return
    with pytest.raises(StartupError, match=r"tensor lm_head\.weight is missing"):
        open_engine(folder)


@pytest.mark.parametrize("executor", BOTH)
@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("Llama", "layers.0.self_attn.rotary_emb.inv_freq"),
        ("Gte", "embeddings.rotary_emb.inv_freq"),
        ("NomicBert", "encoder.layers.0.attn.rotary_emb.inv_freq"),
        ("Roberta", "embeddings.token_type_ids"),
        ("Bert", "embeddings.token_type_ids"),
        ("DistilBert", "embeddings.position_ids"),
    ],
)
def test_constants_that_older_code_saved_are_left_alone(
    tmp_path: Path, open_engine: OpenEngine, executor: str, family: str, name: str
) -> None:
    sizes = {"dim": 64, "n_layers": 2, "n_heads": 2, "hidden_dim": 96}
    folder = tiny(tmp_path / "m", family, **(sizes if family == "DistilBert" else {}))
    write_modules(folder, "Transformer", "Pooling", pooling=MEAN)
    before = embed(open_engine(folder, cpu_executor=executor), [[5, 6, 7]])
    tensors = load_file(folder / "model.safetensors")
    file = folder / "model.safetensors"
    save_file(tensors | {name: torch.ones(16)}, file, metadata={"format": "pt"})
    after = embed(open_engine(folder, cpu_executor=executor), [[5, 6, 7]])
    assert np.array_equal(before, after)


def test_an_adapter_beside_the_weights_is_refused(tmp_path: Path) -> None:
    folder = tiny(tmp_path / "m")
    patch_json(folder / "adapter_config.json", peft_type="LORA", r=4)
    with pytest.raises(StartupError, match=r"adapter_config\.json: an adapter .*merge") as refused:
        load_engines(
            [ModelSpec(alias="m", folder=folder)],
            EngineSettings(warmup_s=0, device="cpu"),
            log=lambda line: None,
        )
    assert "\n" not in str(refused.value)
