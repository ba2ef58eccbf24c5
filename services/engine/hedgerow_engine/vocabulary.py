"""A tokenizer.json against the embedding table: no text may become an id that has no row."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from hedgerow_shared.errors import StartupError
from hedgerow_shared.modelcard import ModelCard


def check_vocabulary(card: ModelCard) -> None:
    """Refuse a tokenizer that can give ids the embedding table has no row for.

    A special token may lie beyond the table (EmbeddingGemma has one for images): no text can
    spell it (docs/decisions/0020). It counts where the file itself puts it around a text.
    """
    if not card.tokenizer_file.is_file():
        return
    try:
        largest = max(_ids(json.loads(card.tokenizer_file.read_text("utf-8"))))
    except (ValueError, KeyError, TypeError, AttributeError, OSError, RecursionError):
        raise StartupError(
            f"{card.tokenizer_file}: not a tokenizer.json with a vocabulary; download it again"
        ) from None
    if largest >= card.vocab_size:
        raise StartupError(
            f"{card.tokenizer_file}: has token id {largest}, but the embeddings have "
            f"{card.vocab_size} rows (vocab_size in {card.trunk / 'config.json'}); take the "
            "tokenizer that belongs to these weights"
        )


def _ids(file: Any) -> Iterator[int]:
    """Every id that a text, or what is put around it, can become. Raises what broken files do."""
    model, added = file["model"], file.get("added_tokens") or ()
    special = {token["content"] for token in added if token.get("special") is True}
    special.discard(model.get("unk_token"))
    vocab = model["vocab"]
    pieces = vocab.items() if isinstance(vocab, dict) else _unigram(vocab, model.get("unk_id"))
    found = [i for piece, i in pieces if piece not in special]
    found += [token["id"] for token in added if token["content"] not in special]
    # Ids that are text compare with each other, and only then fail.
    if any(type(i) is not int for i in found):
        raise TypeError
    yield from found
    yield from _numbers(file.get("post_processor"))


def _unigram(vocab: list[Any], unknown: object) -> Iterator[tuple[object, int]]:
    """(piece, id); the unknown piece under no name, as any text may become it."""
    for i, entry in enumerate(vocab):
        yield (None if i == unknown else entry[0]), i


def _numbers(value: Any) -> Iterator[int]:
    """Every whole number in a post-processor: ids, and token types, which are 0 and 1."""
    if type(value) is int:
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _numbers(inner)
