"""Every family against transformers: tiny random checkpoints that transformers itself wrote."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.engine.conftest import OpenEngine, cosines
from tests.engine.tiny import (
    LENGTHS,
    embed,
    hidden_of,
    patch_json,
    save,
    seeded,
    token_batches,
    transformers,
    write_modules,
)

VOCAB, LONGEST = 80, 200
SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "max_position_embeddings": LONGEST,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
}
Pool = Callable[[np.ndarray], np.ndarray]


def mean(hidden: np.ndarray) -> np.ndarray:
    return hidden.mean(0)


def first(hidden: np.ndarray) -> np.ndarray:
    return hidden[0]


def last(hidden: np.ndarray) -> np.ndarray:
    return hidden[-1]


POOLING = {mean: "mean", first: "cls", last: "lasttoken"}


@dataclass
class Family:
    name: str
    model: str
    config: dict[str, Any] = field(default_factory=dict)
    pool: Pool = mean
    patch: dict[str, Any] = field(default_factory=dict)
    longest: int = LONGEST
    floor: float = 0.99999

    def build(self) -> Any:
        shape = {k: v for k, v in (SHAPE | self.config).items() if v is not None}
        config = getattr(transformers, f"{self.model}Config")(**shape)
        return seeded(getattr(transformers, f"{self.model}Model"), config)


GQA = {"num_key_value_heads": 2, "head_dim": 16}
ROPES = {
    "full_attention": {"rope_type": "default", "rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}
FAMILIES = [
    Family("bert", "Bert"),
    Family("bert cls", "Bert", {"type_vocab_size": 1}, first),
    Family("bert tanh-gelu", "Bert", {"hidden_act": "gelu_pytorch_tanh"}),
    Family("roberta", "Roberta", longest=LONGEST - 2),
    Family("xlm-roberta", "XLMRoberta", {"type_vocab_size": 1}, first, longest=LONGEST - 2),
    Family("camembert", "Camembert", longest=LONGEST - 2),
    Family("mpnet", "MPNet", longest=LONGEST - 2),
    Family(
        "distilbert",
        "DistilBert",
        {
            "dim": 64,
            "n_layers": 3,
            "n_heads": 4,
            "hidden_dim": 96,
            "hidden_size": None,
            "num_hidden_layers": None,
            "num_attention_heads": None,
            "intermediate_size": None,
        },
    ),
    Family("qwen3 causal last", "Qwen3", {**GQA, "head_dim": 32}, last),
    Family("qwen3 bias", "Qwen3", {**GQA, "attention_bias": True}, last),
    Family(
        "qwen3 windowed",
        "Qwen3",
        {**GQA, "use_sliding_window": True, "sliding_window": 16, "max_window_layers": 2},
        last,
    ),
    Family("qwen2", "Qwen2", GQA, last),
    Family("llama", "Llama", {**GQA, "attention_bias": True}, last),
    Family(
        "llama3 rope",
        "Llama",
        {
            **GQA,
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 5e5,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            },
        },
    ),
    Family("mistral windowed", "Mistral", {**GQA, "sliding_window": 24}, last),
    Family("eurobert", "EuroBert", {**GQA, "mask_token_id": 3}),
    Family(
        "gemma3 bidirectional",
        "Gemma3Text",
        {
            **GQA,
            "use_bidirectional_attention": True,
            "sliding_window": 32,
            "rope_parameters": ROPES,
            "sliding_window_pattern": 2,
            "query_pre_attn_scalar": 24,
        },
    ),
    Family(
        "gemma3 causal",
        "Gemma3Text",
        {**GQA, "sliding_window": 32, "sliding_window_pattern": 2, "query_pre_attn_scalar": 24},
        last,
    ),
    Family(
        "modernbert",
        "ModernBert",
        {"local_attention": 16, "cls_token_id": 0, "sep_token_id": 2},
        first,
    ),
    Family(
        "modernbert old keys",
        "ModernBert",
        {"local_attention": 16, "cls_token_id": 0, "sep_token_id": 2},
        patch={
            "layer_types": None,
            "rope_parameters": None,
            "global_attn_every_n_layers": 3,
            "global_rope_theta": 160000.0,
            "local_rope_theta": 10000.0,
        },
    ),
    Family(
        "modernbert biased",
        "ModernBert",
        {
            "local_attention": 16,
            "cls_token_id": 0,
            "sep_token_id": 2,
            "attention_bias": True,
            "mlp_bias": True,
            "norm_bias": True,
        },
    ),
    Family("gte", "Gte", pool=first),
    Family("nomic", "NomicBert"),
    Family(
        "deberta-v3",
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
        first,
    ),
    Family(
        "deberta own projections",
        "DebertaV2",
        {
            "relative_attention": True,
            "pos_att_type": "c2p|p2c",
            "position_biased_input": True,
            "type_vocab_size": 2,
        },
        first,
    ),
    Family(
        "deberta c2p only",
        "DebertaV2",
        {
            "relative_attention": True,
            "position_buckets": 16,
            "pos_att_type": ["c2p"],
            "share_att_key": True,
            "position_biased_input": False,
            "type_vocab_size": 0,
        },
        first,
    ),
]


@pytest.fixture(scope="module", params=FAMILIES, ids=lambda f: f.name)
def family(request: pytest.FixtureRequest) -> Family:
    return request.param


@pytest.fixture(scope="module")
def model(family: Family) -> Any:
    return family.build()


@pytest.fixture(scope="module")
def folder(family: Family, model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = save(tmp_path_factory.mktemp("family"), model, **family.patch)
    write_modules(
        folder,
        "Transformer",
        "Pooling",
        pooling={"embedding_dimension": 64, "pooling_mode": POOLING[family.pool]},
    )
    return folder


def expected(family: Family, model: Any, sequences: list[list[int]]) -> np.ndarray:
    return np.stack([family.pool(hidden_of(model, ids)) for ids in sequences])


def test_a_ragged_batch_gives_the_vectors_of_transformers(
    family: Family, model: Any, folder: Path, open_engine: OpenEngine
) -> None:
    sequences = token_batches(VOCAB)
    want = expected(family, model, sequences)
    engine = open_engine(folder)
    for _ in range(3):  # eager, captured, replayed
        got = embed(engine, sequences)
        assert cosines(got, want).min() >= family.floor
        assert np.abs(got - want).max() <= 2e-3 * np.abs(want).max()
    assert engine.stats()["graph_replayed"] == 1


def test_one_sequence_and_the_longest_are_exact(
    family: Family, model: Any, folder: Path, open_engine: OpenEngine
) -> None:
    engine = open_engine(folder)
    assert engine.max_seq_len == family.longest
    for length in (1, 9, family.longest):
        sequences = token_batches(VOCAB, (length,), seed=length)
        got, want = embed(engine, sequences), expected(family, model, sequences)
        assert cosines(got, want).min() >= family.floor


def test_bfloat16_loses_no_more_than_transformers_does_in_bfloat16(
    family: Family, model: Any, folder: Path, open_engine: OpenEngine
) -> None:
    # Random weights amplify rounding far more than trained ones do, so the measure is what
    # the same rounding costs transformers.
    sequences = token_batches(VOCAB, (12, 40, 100, 150))
    want = expected(family, model, sequences)
    theirs = cosines(bfloat16_rows(family, model, sequences), want)
    ours = cosines(embed(open_engine(folder, dtype="bfloat16"), sequences), want)
    assert (1 - ours).mean() <= 1.5 * (1 - theirs).mean() + 1e-4


def bfloat16_rows(family: Family, model: Any, sequences: list[list[int]]) -> np.ndarray:
    narrow = copy.deepcopy(model).to(torch.bfloat16)
    rows = []
    with torch.no_grad():
        for ids in sequences:
            mask = torch.ones(1, len(ids)).long()
            out = narrow(input_ids=torch.tensor([ids]), attention_mask=mask)
            rows.append(family.pool(out.last_hidden_state[0].float().numpy()))
    return np.stack(rows)


def test_lengths_of_the_fixture_hold_equal_and_single_ones() -> None:
    assert len(set(LENGTHS)) < len(LENGTHS) and 1 in LENGTHS


def test_a_family_that_is_not_here_is_refused_by_name(
    tmp_path: Path, open_engine: OpenEngine
) -> None:
    folder = save(tmp_path / "m", FAMILIES[0].build())
    for kind, words in (("gemma2", "capped attention scores"), ("xlm-roberta-flash", "LoRA")):
        patch_json(folder / "config.json", model_type=kind)
        with pytest.raises(Exception, match=words):
            open_engine(folder)


def test_jina_bert_is_refused_though_it_calls_itself_bert(
    tmp_path: Path, open_engine: OpenEngine
) -> None:
    auto_map = {"AutoModel": "jinaai/jina-bert-implementation--modeling_bert.JinaBertModel"}
    folder = save(tmp_path / "m", FAMILIES[0].build(), auto_map=auto_map)
    with pytest.raises(Exception, match="ALiBi"):
        open_engine(folder)
