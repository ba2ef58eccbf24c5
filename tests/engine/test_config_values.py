"""A value of the wrong type or range is one line that names file, key, value and remedy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hedgerow_shared.errors import StartupError
from tests.engine.config_cases import BOTH, SEQUENCES, change, oracle, write
from tests.engine.conftest import OpenEngine, cosines
from tests.engine.tiny import embed

ABOVE = "a number above 0"
ZERO = "a number, 0 or more"
WHOLE = "a positive whole number"
NAN, INFINITE = float("nan"), float("inf")
WRONG: list[tuple[str, str, list[Any], str]] = [
    ("ModernBert", "local_attention", [-400, -4, -3, 0, "x", True, 8.0, 1 << 40], WHOLE),
    ("ModernBert", "norm_eps", ["x", -1], ZERO),
    ("ModernBert", "global_attn_every_n_layers", [0, "x"], WHOLE),
    ("ModernBert", "layer_types", [5, "x", ["x"], [["x"]] * 3], "a list of 3"),
    ("ModernBert", "attention_bias", ["yes", 1], "true or false"),
    ("Mistral", "sliding_window", [0, -5, -400, [4], "x"], WHOLE),
    ("Gemma3Text", "sliding_window", [0, [4], "x", None], WHOLE),
    ("Gemma3Text", "query_pre_attn_scalar", [0, "x", -4, NAN], ABOVE),
    ("Gemma3Text", "attn_logit_softcapping", [30.0], "absent"),
    ("Gemma3Text", "use_bidirectional_attention", ["yes", 1], "true or false"),
    ("Llama", "sliding_window", ["x"], WHOLE),
    ("Llama", "num_hidden_layers", ["x", 0, 10**9, 10**400], ""),
    ("Llama", "rope_theta", [10**400], ABOVE),
    ("Llama", "layer_types", [["sliding_attention"] * 3], "full_attention only"),
    ("Llama", "rms_norm_eps", ["x", -1, NAN, True], ZERO),
    ("Llama", "num_key_value_heads", [3], "a divisor of 2"),
    ("Llama", "head_dim", ["x", 33], ""),
    ("Llama", "text_config", ["x", [1]], "an object"),
    ("Llama", "pad_token_id", ["x", [1]], "a whole number"),
    ("EuroBert", "use_bidirectional_attention", ["yes"], "true or false"),
    ("Qwen3", "is_causal", ["no"], "true or false"),
    ("Mistral", "is_causal", [False, None], "true or absent"),
    ("Gemma3Text", "is_causal", [False, None], "true or absent"),
    ("ModernBert", "is_causal", [True, "x"], "False"),
    ("EuroBert", "is_causal", [True], "False"),
    ("ModernBert", "sliding_window", [7, "x"], "4"),
    ("Bert", "layer_norm_eps", ["x", [1], -1, NAN, INFINITE, True], ZERO),
    ("Bert", "type_vocab_size", ["two", [2], -1], "a whole number from 0 up"),
    ("Bert", "hidden_act", [["gelu"], {"a": 1}], "the name of an activation"),
    ("Bert", "head_dim", ["x", 64], "32"),
    ("Bert", "num_key_value_heads", [1], "2"),
    ("Bert", "num_attention_heads", [3], "a divisor of the hidden size, 64"),
    ("Bert", "add_cross_attention", [True], "False"),
    ("Bert", "quantization_config", [{"bits": 4}], "absent: quantised weights"),
    ("Bert", "pad_token_id", ["x", [1]], "a whole number"),
    ("Roberta", "pad_token_id", [500, -5], "from 0 to 128"),
    ("MPNet", "relative_attention_num_buckets", ["x", 40], "32"),
    ("NomicBert", "layer_norm_eps", ["x"], ZERO),
    ("Gte", "type_vocab_size", ["x"], "a whole number from 0 up"),
]
WRONG_IN_TORCH: list[tuple[str, str, list[Any], str]] = [
    ("DebertaV2", "position_buckets", ["x"], "a whole number from -1 up"),
    ("DebertaV2", "max_relative_positions", ["x"], "a whole number from -1 up"),
    ("DebertaV2", "pos_att_type", [5, [5], ["p2p"]], "c2p, p2c or both"),
    ("DebertaV2", "relative_attention", [None, "x"], "true"),
    ("DebertaV2", "norm_rel_ebd", [5], "none or layer_norm"),
    ("DebertaV2", "pooler_hidden_act", [5], "the name of an activation"),
]


def _refused(
    folder: Path, open_engine: OpenEngine, executor: str, key: str, value: Any, wanted: str
) -> None:
    before = (folder / "config.json").read_bytes()
    change(folder / "config.json", **{key: value})
    try:
        with pytest.raises(StartupError, match=rf"config\.json: {key} .*{wanted}") as refused:
            open_engine(folder, cpu_executor=executor)
    finally:
        (folder / "config.json").write_bytes(before)
    text = str(refused.value)
    assert "\n" not in text
    assert repr(value) in text


@pytest.mark.parametrize("executor", BOTH)
@pytest.mark.parametrize(("family", "key", "values", "wanted"), WRONG, ids=lambda v: str(v)[:24])
def test_a_wrong_value_is_refused_by_both_executors(
    tmp_path: Path,
    open_engine: OpenEngine,
    executor: str,
    family: str,
    key: str,
    values: list[Any],
    wanted: str,
) -> None:
    folder = write(tmp_path / "m", family)
    for value in values:
        _refused(folder, open_engine, executor, key, value, wanted)


@pytest.mark.parametrize(
    ("family", "key", "values", "wanted"), WRONG_IN_TORCH, ids=lambda v: str(v)[:24]
)
def test_a_wrong_value_of_deberta_is_refused(
    tmp_path: Path, open_engine: OpenEngine, family: str, key: str, values: list[Any], wanted: str
) -> None:
    folder = write(tmp_path / "m", family)
    for value in values:
        _refused(folder, open_engine, "packed", key, value, wanted)


@pytest.mark.parametrize("executor", BOTH)
@pytest.mark.parametrize(
    ("family", "values"),
    [
        ("Mistral", {"sliding_window": 1}),
        ("Mistral", {"sliding_window": 2**31 - 1}),
        ("ModernBert", {"local_attention": 1}),
        ("Gemma3Text", {"sliding_window": 1, "use_bidirectional_attention": True}),
        ("Bert", {"layer_norm_eps": 0.5}),
        ("Bert", {"text_config": None}),
        ("Llama", {"text_config": None, "query_pre_attn_scalar": 7}),
        ("MPNet", {"pad_token_id": 0, "type_vocab_size": 2}),
        ("Qwen3", {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 0}),
        ("Qwen2", {"use_sliding_window": True, "sliding_window": 4, "layer_types": None}),
    ],
    ids=str,
)
def test_values_at_the_edge_mean_what_they_mean_to_transformers(
    tmp_path: Path, open_engine: OpenEngine, executor: str, family: str, values: dict[str, Any]
) -> None:
    folder = write(tmp_path / "m", family)
    expect = oracle(folder, family, SEQUENCES) if "text_config" in values else None
    change(folder / "config.json", **values)
    if expect is None:
        expect = oracle(folder, family, SEQUENCES)
    got = embed(open_engine(folder, cpu_executor=executor), SEQUENCES)
    assert cosines(got, expect).min() > 0.99999


@pytest.mark.parametrize("executor", BOTH)
@pytest.mark.parametrize(
    ("family", "key"),
    [
        ("Llama", "head_dim"),
        ("Llama", "num_attention_heads"),
        ("Llama", "intermediate_size"),
        ("ModernBert", "intermediate_size"),
        ("Bert", "intermediate_size"),
        ("MPNet", "intermediate_size"),
        ("Gte", "intermediate_size"),
    ],
)
def test_a_size_that_no_memory_holds_is_refused_by_the_shapes_of_the_weights(
    tmp_path: Path, open_engine: OpenEngine, executor: str, family: str, key: str
) -> None:
    folder = write(tmp_path / "m", family)
    change(folder / "config.json", **{key: 10**9})
    with pytest.raises(StartupError, match="but the config asks for"):
        open_engine(folder, cpu_executor=executor)
