"""The cost of attention against numbers worked out by hand from published sizes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hedgerow_scheduler.cost import attention_cost
from hedgerow_shared.modelcard import ModelCard, read_card

BERT = {"architectures": ["BertModel"], "vocab_size": 100, "max_position_embeddings": 512}
BASE = {**BERT, "hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}
LARGE = {**BERT, "hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 4096}
QWEN = {
    "architectures": ["Qwen3Model"],
    "vocab_size": 100,
    "max_position_embeddings": 32768,
    "hidden_size": 1024,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 3072,
}


def card(folder: Path, config: dict[str, Any]) -> ModelCard:
    (folder / "config.json").write_text(json.dumps(config))
    return read_card(folder)


@pytest.mark.parametrize(
    ("config", "expected"),
    [(BASE, 2.2e-4), (LARGE, 1.6e-4), (QWEN, 2.6e-4)],
    ids=["bge-base", "bge-large", "Qwen3-0.6B"],
)
def test_the_share_of_attention_matches_what_the_sizes_say(
    tmp_path: Path, config: dict[str, Any], expected: float
) -> None:
    assert attention_cost(card(tmp_path, config)) == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize("key", ["num_attention_heads", "intermediate_size"])
def test_a_config_that_does_not_tell_its_sizes_costs_tokens_only(tmp_path: Path, key: str) -> None:
    config = {k: v for k, v in BASE.items() if k != key}
    assert attention_cost(card(tmp_path, config)) == 0.0


def test_a_size_that_is_no_number_does_not_end_the_worker(tmp_path: Path) -> None:
    assert attention_cost(card(tmp_path, {**BASE, "intermediate_size": "4x"})) == 0.0
