"""Folders that sentence-transformers itself writes, around tiny random models and a tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from tests.engine.config_cases import MORE, SHAPE
from tests.engine.tiny import save, seeded, transformers

SPECIALS = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"]
WORDS = [*SPECIALS, *(f"w{i}" for i in range(72)), ".", ",", "!"]
LONG = " ".join(f"w{i % 70}" for i in range(60))


def tiny(folder: Path, family: str = "Bert", head: str = "Model", **config: Any) -> Path:
    """A random model of transformers' `family` and a tokenizer of 80 words."""
    made = getattr(transformers, f"{family}Config")(
        **SHAPE | MORE.get(family, {}) | {"pad_token_id": 0} | config
    )
    save(folder, seeded(getattr(transformers, f"{family}{head}"), made))
    write_tokenizer(folder)
    return folder


def write_tokenizer(folder: Path, **settings: Any) -> None:
    """[CLS] text [SEP] over WORDS, as transformers saves it."""
    made = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 1), ("[SEP]", 2)],
    )
    names = ("pad_token", "cls_token", "sep_token", "unk_token", "mask_token")
    tokens = dict(zip(names, SPECIALS))
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, **tokens, **settings
    ).save_pretrained(folder)


def ids_of(text: str, longest: int = 1000) -> list[int]:
    """[CLS] text [SEP], cut to `longest` tokens as a tokenizer cuts."""
    known = {word: i for i, word in enumerate(WORDS)}
    return [1, *[known[word] for word in text.split()][: longest - 2], 2]


def identity() -> Any:
    return torch.nn.Identity()
