"""Tokenization: one interface, the implementation chosen per model file."""

from __future__ import annotations

import importlib
from collections.abc import Callable

from hedgerow_gateway.tokenizer.encoder import Encoder
from hedgerow_gateway.tokenizer.file import TokenizerFile, read_file
from hedgerow_gateway.tokenizer.hf import HfEncoder
from hedgerow_gateway.tokenizer.prefix import cuttable
from hedgerow_gateway.tokenizer.specials import read_specials
from hedgerow_gateway.tokenizer.tokenizer import Tokenizer
from hedgerow_shared.modelcard import ModelCard

__all__ = ["Encoder", "Tokenizer", "open_tokenizer"]

Log = Callable[[str], None]


def open_tokenizer(card: ModelCard, *, log: Log) -> Tokenizer:
    """Read a model's tokenizer and pick its fastest exact encoder.

    Raises StartupError with one line that names the file and the field.
    """
    file = read_file(card)
    reference = HfEncoder(file)
    encoder = choose(file, reference, log=log)
    return Tokenizer(encoder, read_specials(file, reference, card), cuttable(file))


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
    except ImportError as error:
        log(f"unigram encoder not available ({error}); the tokenizers library serves")
        return None
    return module.open_unigram(file, reference, log=log)
