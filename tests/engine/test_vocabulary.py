"""Which tokenizers fit an embedding table, and what BGE-M3's extra heads must be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from hedgerow_shared.errors import StartupError
from tests.engine.config_cases import change, write
from tests.engine.conftest import OpenEngine

VOCAB = {f"t{i}": i for i in range(80)}
IMAGE = {"id": 80, "content": "<image_soft_token>", "special": True}


def tokenizer(folder: Path, **file: Any) -> Path:
    content = {"model": {"type": "BPE", "vocab": VOCAB}, "added_tokens": [IMAGE]} | file
    (folder / "tokenizer.json").write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize("listed", [False, True], ids=["added", "and in the vocabulary"])
def test_a_special_token_beyond_the_table_is_no_obstacle(
    tmp_path: Path, open_engine: OpenEngine, listed: bool
) -> None:
    """EmbeddingGemma as published: 262144 rows, and a token for images with that id."""
    folder = write(tmp_path / "m", "Gemma3Text", use_bidirectional_attention=True)
    vocab = VOCAB | ({IMAGE["content"]: 80} if listed else {})
    template = {"type": "TemplateProcessing", "special_tokens": {"t2": {"id": "t2", "ids": [2]}}}
    tokenizer(folder, model={"type": "BPE", "vocab": vocab}, post_processor=template)
    assert open_engine(folder).card.vocab_size == 80


BEYOND: dict[str, dict[str, Any]] = {
    "a piece": {"model": {"type": "BPE", "vocab": VOCAB | {"x": 80}}},
    "an added word": {"added_tokens": [{**IMAGE, "special": False}]},
    "an added word that does not say": {"added_tokens": [{"id": 80, "content": "x"}]},
    "the unknown token": {
        "model": {"type": "BPE", "vocab": VOCAB, "unk_token": IMAGE["content"]},
    },
    "the unknown piece of a unigram": {
        "model": {
            "type": "Unigram",
            "vocab": [*([p, -1.0] for p in VOCAB), [IMAGE["content"], 0.0]],
            "unk_id": 80,
        },
    },
    "in a template": {
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<image_soft_token>", "type_id": 0}}],
            "special_tokens": {"<image_soft_token>": {"id": "<image_soft_token>", "ids": [80]}},
        }
    },
    "around a text": {
        "post_processor": {
            "type": "Sequence",
            "processors": [{"type": "BertProcessing", "sep": ["<x>", 80], "cls": ["t1", 1]}],
        }
    },
}


@pytest.mark.parametrize("file", BEYOND.values(), ids=BEYOND.keys())
def test_an_id_beyond_the_table_that_a_text_can_become_is_refused(
    tmp_path: Path, open_engine: OpenEngine, file: dict[str, Any]
) -> None:
    folder = tokenizer(write(tmp_path / "m", "Bert"), **file)
    with pytest.raises(StartupError, match=r"has token id 80, but the embeddings have 80 rows"):
        open_engine(folder)


def test_a_sparse_head_of_more_than_one_number_is_refused(
    tmp_path: Path, open_engine: OpenEngine
) -> None:
    folder = write(tmp_path / "m", "XLMRoberta")
    torch.save(torch.nn.Linear(64, 3).state_dict(), folder / "sparse_linear.pt")
    with pytest.raises(StartupError, match=r"linear\.weight is \[3, 64\], but .* \[1, 64\]"):
        open_engine(folder)


def test_a_special_id_that_is_no_id_is_one_line(tmp_path: Path, open_engine: OpenEngine) -> None:
    folder = write(tmp_path / "m", "XLMRoberta")
    torch.save(torch.nn.Linear(64, 1).state_dict(), folder / "sparse_linear.pt")
    change(folder / "config.json", bos_token_id=10**19)
    with pytest.raises(StartupError, match=r"config\.json: bos_token_id is 10{19}; it must be"):
        open_engine(folder)
