"""Rotary angles in every spelling mean what they mean to transformers, or are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hedgerow_shared.errors import StartupError
from tests.engine.config_cases import BOTH, SEQUENCES, change, oracle, write
from tests.engine.conftest import OpenEngine, cosines
from tests.engine.tiny import embed

LINEAR = {"rope_type": "linear", "factor": 4.0}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
FLAT = ("rope_parameters",)
SPELLINGS: dict[str, tuple[str, tuple[str, ...], dict[str, Any]]] = {
    "type for rope_type": (
        "Llama",
        (),
        {"rope_parameters": {"type": "linear", "factor": 4.0, "rope_theta": 10000.0}},
    ),
    "scaling beside parameters": ("Llama", (), {"rope_scaling": LINEAR}),
    "scaling beside another base": (
        "Llama",
        (),
        {
            "rope_parameters": {"rope_type": "default", "rope_theta": 5e5},
            "rope_scaling": LINEAR,
        },
    ),
    "base in the scaling": ("Qwen3", FLAT, {"rope_scaling": LINEAR | {"rope_theta": 5e5}}),
    "base beside the scaling": ("Qwen2", FLAT, {"rope_scaling": LINEAR, "rope_theta": 5e5}),
    "llama3 from max_position_embeddings": ("Llama", FLAT, {"rope_scaling": LLAMA3}),
    "llama3 with its own length": (
        "Llama",
        FLAT,
        {"rope_scaling": LLAMA3 | {"original_max_position_embeddings": 32}},
    ),
    "llama3 with a length beside": (
        "Llama",
        FLAT,
        {"rope_scaling": LLAMA3, "original_max_position_embeddings": 32},
    ),
    "gemma3 flat": (
        "Gemma3Text",
        FLAT,
        {
            "rope_theta": 1e6,
            "rope_local_base_freq": 1e4,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        },
    ),
    "gemma3 flat without a base": (
        "Gemma3Text",
        FLAT,
        {"rope_scaling": {"rope_type": "linear", "factor": 8.0}},
    ),
    "gemma3 scaling beside parameters": ("Gemma3Text", (), {"rope_scaling": LINEAR}),
    "modernbert flat and scaled": (
        "ModernBert",
        FLAT,
        {"global_rope_theta": 8e4, "local_rope_theta": 2e4, "rope_scaling": LINEAR},
    ),
    "gte flat": ("Gte", FLAT, {"rope_theta": 2e4}),
}


@pytest.mark.parametrize("executor", BOTH)
@pytest.mark.parametrize(("family", "drop", "values"), SPELLINGS.values(), ids=SPELLINGS.keys())
def test_each_spelling_of_the_angles_is_read_as_transformers_reads_it(
    tmp_path: Path,
    open_engine: OpenEngine,
    executor: str,
    family: str,
    drop: tuple[str, ...],
    values: dict[str, Any],
) -> None:
    folder = write(tmp_path / "m", family)
    change(folder / "config.json", *drop, **values)
    got = embed(open_engine(folder, cpu_executor=executor), SEQUENCES)
    assert cosines(got, oracle(folder, family, SEQUENCES)).min() > 0.99999


NTK = {"type": "ntk", "factor": 2.0}
REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "ntk": ("Gte", {"rope_scaling": NTK}, r"rope_scaling\.type is 'ntk'; it must be default"),
    "yarn": (
        "Llama",
        {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0}},
        r"rope_parameters\.rope_type is 'yarn'; it must be default, linear or llama3",
    ),
    "partial inside": (
        "Llama",
        {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}},
        r"rope_parameters\.partial_rotary_factor is 0\.5; it must be 1\.0",
    ),
    "partial beside": ("Llama", {"partial_rotary_factor": 0.5}, r"partial_rotary_factor is 0\.5"),
    "theta is text": (
        "Llama",
        {"rope_parameters": {"rope_theta": "x"}},
        r"rope_parameters\.rope_theta is 'x'; it must be a number above 0",
    ),
    "flat theta is text": (
        "Llama",
        {"rope_parameters": None, "rope_theta": "x"},
        "rope_theta is 'x'; it must be a number above 0",
    ),
    "factor is text": (
        "Llama",
        {"rope_scaling": {"rope_type": "linear", "factor": "x"}},
        r"rope_scaling\.factor is 'x'; it must be a number above 0",
    ),
    "no factor": (
        "Llama",
        {"rope_scaling": {"rope_type": "linear"}},
        r"rope_scaling\.factor is None; it must be a number above 0",
    ),
    "an empty band": (
        "Llama",
        {"rope_scaling": LLAMA3 | {"high_freq_factor": 1.0}},
        r"rope_scaling\.high_freq_factor is 1\.0; it must be above low_freq_factor",
    ),
    "scaling is text": ("Llama", {"rope_scaling": "x"}, "rope_scaling is 'x'; it must be an obj"),
    "parameters are a list": ("Llama", {"rope_parameters": [1]}, r"rope_parameters is \[1\]"),
    "llama with two kinds": (
        "Llama",
        {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e4}}},
        "rope_parameters is .*; it must be one object: this family has one kind of layer",
    ),
    "gemma3 with one kind": (
        "Gemma3Text",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
        r"rope_parameters is .*; it must be an object with full_attention and sliding_attention",
    ),
    "gemma3 with text for a kind": (
        "Gemma3Text",
        {"rope_parameters": {"full_attention": "x"}},
        r"rope_parameters\.full_attention is 'x'; it must be an object",
    ),
}


@pytest.mark.parametrize("executor", BOTH)
@pytest.mark.parametrize(("family", "values", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_angles_that_are_wrong_or_not_built_are_refused_in_one_line(
    tmp_path: Path,
    open_engine: OpenEngine,
    executor: str,
    family: str,
    values: dict[str, Any],
    message: str,
) -> None:
    folder = write(tmp_path / "m", family)
    change(folder / "config.json", **values)
    with pytest.raises(StartupError, match=rf"config\.json: {message}") as refused:
        open_engine(folder, cpu_executor=executor)
    assert "\n" not in str(refused.value)
