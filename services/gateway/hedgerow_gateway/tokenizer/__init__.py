"""Tokenization: one interface, the implementation chosen per model file."""

from __future__ import annotations

import importlib
from collections.abc import Callable

import numpy as np
from tokenizers import Tokenizer as HfTokenizer

from hedgerow_gateway.tokenizer.encoder import Encoder
from hedgerow_gateway.tokenizer.file import TokenizerFile, read_file
from hedgerow_gateway.tokenizer.hf import HfEncoder
from hedgerow_gateway.tokenizer.prefix import cuttable
from hedgerow_gateway.tokenizer.specials import Specials, read_specials
from hedgerow_gateway.tokenizer.tokenizer import Tokenizer
from hedgerow_shared.modelcard import ModelCard

__all__ = ["Encoder", "Tokenizer", "frame_tokenizer", "open_tokenizer"]

Log = Callable[[str], None]


def open_tokenizer(card: ModelCard, *, log: Log) -> Tokenizer:
    """Read a model's tokenizer and pick its fastest exact encoder.

    Raises StartupError with one line that names the file and the field.
    """
    file = read_file(card)
    reference = HfEncoder(file)
    encoder = choose(file, reference, log=log)
    return Tokenizer(encoder, read_specials(file, reference, card), cuttable(file))


def frame_tokenizer(card: ModelCard, plain: Tokenizer, head: str, tail: str) -> Tokenizer:
    """The same encoder with other surroundings: `head` and `tail` may spell control tokens,
    the text between them may not."""
    library = HfTokenizer.from_file(str(card.tokenizer_file))
    ids = [library.encode(text, add_special_tokens=False).ids for text in (head, tail)]
    before, after = (np.array(found, np.int32) for found in ids)
    return Tokenizer(plain.encoder, Specials(prefix=before, suffix=after), plain.cuttable)


def choose(file: TokenizerFile, reference: HfEncoder, *, log: Log) -> Encoder:
    """The fast encoder written for this kind of file if it proves exact; else `reference`."""
    if file.model_type == "Unigram":
        fast = _unigram(file, reference, log)
        if fast is not None:
            return fast
    return reference


def _unigram(file: TokenizerFile, reference: HfEncoder, log: Log) -> Encoder | None:
    try:
        module = importlib.import_module("hedgerow_gateway.tokenizer.unigram")
        opener = module.open_unigram
    except (ImportError, AttributeError) as error:
        log(f"unigram encoder not available ({error}); the tokenizers library serves")
        return None
    return opener(file, reference, log=log)
