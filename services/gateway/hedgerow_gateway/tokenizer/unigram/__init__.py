"""The unigram encoder behind the gateway's tokenizer interface (see `encoder`)."""

from __future__ import annotations

from collections.abc import Callable

from hedgerow_gateway.tokenizer.encoder import Encoder
from hedgerow_gateway.tokenizer.file import TokenizerFile
from hedgerow_gateway.tokenizer.hf import HfEncoder
from hedgerow_gateway.tokenizer.selfcheck import Shadowed, differences
from hedgerow_gateway.tokenizer.unigram.spec import NotSupportedError
from hedgerow_gateway.tokenizer.unigram.store import cache_folder

__all__ = ["NotSupportedError", "open_unigram"]

Log = Callable[[str], None]


def open_unigram(file: TokenizerFile, reference: HfEncoder, *, log: Log) -> Encoder | None:
    """The exact encoder of this file, checked against `reference`; None when that one serves.

    Every reason for None is one log line: numba absent, a pipeline that is not known to be
    exact, or a difference in the self-check.
    """
    serves = "the tokenizers library serves"
    try:
        from hedgerow_gateway.tokenizer.unigram.encoder import UnigramEncoder
    except ImportError as error:
        log(f"{file.path}: no numba ({error}); {serves}; pip install 'hedgerow[unigram]'")
        return None
    try:
        encoder = UnigramEncoder.load(file, reference.library, cache_folder(), log=log)
    except NotSupportedError as error:
        log(f"{file.path}: {error}; {serves}")
        return None
    found = differences(encoder, reference)
    if found:
        log(f"{file.path}: unigram self-check failed, first at {found[0]!r}; {serves}")
        return None
    return Shadowed(encoder, reference, log=log)
