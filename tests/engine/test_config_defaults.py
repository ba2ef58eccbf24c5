"""A key that config.json leaves out means what transformers' config class of that family says."""

from __future__ import annotations

from pathlib import Path

import pytest

from hedgerow_engine.models.defaults import DEFAULTS
from tests.engine.config_cases import BOTH, SEQUENCES, change, oracle, write
from tests.engine.conftest import OpenEngine, cosines
from tests.engine.tiny import embed, transformers

DECODERS = ("Llama", "Mistral", "Qwen2", "Qwen3", "EuroBert")
MISSING = [
    *((family, ("hidden_act",)) for family in (*DECODERS, "Bert", "Roberta", "MPNet", "Gte")),
    *((family, ("rms_norm_eps",)) for family in (*DECODERS, "Gemma3Text")),
    *((family, ("rope_parameters",)) for family in (*DECODERS, "Gte", "NomicBert")),
    *((family, ("layer_norm_eps", "type_vocab_size")) for family in ("Bert", "Roberta", "MPNet")),
    ("Gemma3Text", ("hidden_activation",)),
    ("Gemma3Text", ("query_pre_attn_scalar",)),
    ("Gemma3Text", ("sliding_window",)),
    ("Gemma3Text", ("rope_parameters",)),
    ("Gemma3Text", ("layer_types", "sliding_window_pattern", "_sliding_window_pattern")),
    ("Mistral", ("sliding_window",)),
    ("Qwen3", ("use_sliding_window", "layer_types", "max_window_layers")),
    ("ModernBert", ("hidden_activation", "norm_eps", "attention_bias", "norm_bias", "mlp_bias")),
    ("ModernBert", ("rope_parameters",)),
    ("ModernBert", ("local_attention",)),
]
NULL = [
    ("Llama", "hidden_act"),
    ("EuroBert", "use_bidirectional_attention"),
    ("Gemma3Text", "use_bidirectional_attention"),
    ("Mistral", "sliding_window"),
    ("Llama", "rope_scaling"),
]


@pytest.mark.parametrize("executor", BOTH)
@pytest.mark.parametrize(("family", "keys"), MISSING, ids=lambda v: v if v else None)
def test_a_missing_key_is_the_familys_own_default(
    tmp_path: Path, open_engine: OpenEngine, executor: str, family: str, keys: tuple[str, ...]
) -> None:
    folder = write(tmp_path / "m", family)
    change(folder / "config.json", *keys)
    got = embed(open_engine(folder, cpu_executor=executor), SEQUENCES)
    assert cosines(got, oracle(folder, family, SEQUENCES)).min() > 0.99999


@pytest.mark.parametrize("executor", BOTH)
@pytest.mark.parametrize(("family", "key"), NULL, ids=lambda v: v)
def test_a_key_that_is_null_says_what_it_says_to_transformers(
    tmp_path: Path, open_engine: OpenEngine, executor: str, family: str, key: str
) -> None:
    folder = write(tmp_path / "m", family)
    expect = oracle(folder, family, SEQUENCES)
    change(folder / "config.json", **{key: None})
    if (family, key) == ("Mistral", "sliding_window"):
        expect = oracle(folder, family, SEQUENCES)
    got = embed(open_engine(folder, cpu_executor=executor), SEQUENCES)
    assert cosines(got, expect).min() > 0.99999


CLASSES = {
    "bert": "Bert",
    "roberta": "Roberta",
    "xlm-roberta": "XLMRoberta",
    "camembert": "Camembert",
    "mpnet": "MPNet",
    "distilbert": "DistilBert",
    "deberta-v2": "DebertaV2",
    "modernbert": "ModernBert",
    "gte": "Gte",
    "nomic_bert": "NomicBert",
    "qwen2": "Qwen2",
    "qwen3": "Qwen3",
    "llama": "Llama",
    "eurobert": "EuroBert",
    "mistral": "Mistral",
    "gemma3_text": "Gemma3Text",
}


@pytest.mark.parametrize("model_type", CLASSES)
def test_the_table_of_defaults_is_that_of_transformers(model_type: str) -> None:
    config = getattr(transformers, f"{CLASSES[model_type]}Config")
    for key, value in DEFAULTS[model_type].items():
        if hasattr(config, key):
            assert getattr(config, key) == value, key
        elif key == "rope_theta" and not isinstance(config.default_theta, dict):
            assert config.default_theta == value
