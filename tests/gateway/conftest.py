"""Models small enough for every test: MiniLM where its package is installed, trained toys else."""

from __future__ import annotations

import json
import pydoc_data.topics
from collections.abc import Iterator
from pathlib import Path

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers.processors import TemplateProcessing

from hedgerow_shared.modelcard import ModelCard, read_card
from tests.gateway.stack import Stack, running_stack

DOCS = list(pydoc_data.topics.topics.values())
QWEN_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@pytest.fixture(scope="session")
def minilm_card(minilm_folder: Path) -> ModelCard:
    return read_card(minilm_folder)


def train_wordpiece() -> Tokenizer:
    tok = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tok.normalizer = normalizers.BertNormalizer()
    tok.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tok.train_from_iterator(
        DOCS[:30], trainers.WordPieceTrainer(vocab_size=800, special_tokens=specials)
    )
    tok.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return tok


def train_unigram() -> Tokenizer:
    tok = Tokenizer(models.Unigram())
    tok.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")]
    )
    tok.pre_tokenizer = pre_tokenizers.Metaspace()
    tok.decoder = decoders.Metaspace()
    specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    tok.train_from_iterator(
        DOCS[:30],
        trainers.UnigramTrainer(vocab_size=800, special_tokens=specials, unk_token="<unk>"),
    )
    tok.post_processor = TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[("<s>", 0), ("</s>", 2)],
    )
    return tok


def train_bpe() -> Tokenizer:
    tok = Tokenizer(models.BPE())
    tok.normalizer = normalizers.NFC()
    tok.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN_SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tok.train_from_iterator(
        DOCS[:30],
        trainers.BpeTrainer(
            vocab_size=800,
            special_tokens=["<|endoftext|>", "<|im_start|>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        ),
    )
    tok.add_tokens(["<think>"])
    return tok


TRAINERS = {"wordpiece": train_wordpiece, "unigram": train_unigram, "bpe": train_bpe}


def write_model(folder: Path, tokenizer: Tokenizer, **config: object) -> Path:
    """A model folder without weights, as the gateway reads one."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    base = {
        "model_type": "bert",
        "architectures": ["BertModel"],
        "hidden_size": 8,
        "vocab_size": tokenizer.get_vocab_size(),
        "max_position_embeddings": 64,
        "type_vocab_size": 2 if "[SEP]" in tokenizer.get_vocab() else 1,
    }
    (folder / "config.json").write_text(json.dumps({**base, **config}))
    return folder


@pytest.fixture(scope="session")
def toy_folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One folder per tokenizer family: wordpiece, unigram, bpe."""
    root = tmp_path_factory.mktemp("toys")
    return {name: write_model(root / name, train()) for name, train in TRAINERS.items()}


@pytest.fixture(scope="module")
def stack(
    tmp_path_factory: pytest.TempPathFactory, toy_folders: dict[str, Path]
) -> Iterator[Stack]:
    """One gateway and one fast fake worker that serve the toy embedder as `toy`."""
    folder = tmp_path_factory.mktemp("stack")
    with running_stack(folder, f"toy={toy_folders['wordpiece']}") as found:
        found.worker("--fake-ms", "4", "--fake-floor-ms", "0.2")
        found.gateway("--max-body-bytes", "8000000")
        found.wait()
        yield found
