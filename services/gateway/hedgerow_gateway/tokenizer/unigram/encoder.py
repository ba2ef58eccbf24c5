"""The unigram encoder: text in, exact ids out, no lock, no growth.

Exact means: the ids of the `tokenizers` library of the same version, proven at load by
`selfcheck` and kept by construction (see `viterbi`, `graphemes`, `tables.library_scores`).
"""

from __future__ import annotations

import importlib
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numba.core import config as numba_config
from tokenizers import Tokenizer as HfTokenizer

from hedgerow_gateway.tokenizer.file import TokenizerFile
from hedgerow_gateway.tokenizer.unigram import cells, store
from hedgerow_gateway.tokenizer.unigram.layout import Status, scratch_bytes
from hedgerow_gateway.tokenizer.unigram.spec import NotSupportedError, UnigramSpec, read_spec
from hedgerow_shared.errors import BadInputError
from hedgerow_shared.ragged import TokenIds

__all__ = ["NotSupportedError", "UnigramEncoder"]

Log = Callable[[str], None]
_ENTRY = "hedgerow_gateway.tokenizer.unigram.entry"
_CAPACITY = 32 * 1024
_SHORT_BYTES = 8192
_FULL, _CUT, _GROW = int(Status.FULL), int(Status.CUT), int(Status.GROW)


class _Scratch(threading.local):
    """One block of working memory per thread."""

    def __init__(self, code: Any) -> None:
        self.block = _new_scratch(code, _CAPACITY)


class UnigramEncoder:
    """Encodes with compiled code. Callable from any thread; long work drops the GIL."""

    name = "unigram"

    def __init__(self, tables: store.Bytes, code: Any) -> None:
        """tables: as built by `tables.build`; code: the module `entry`."""
        self._tables = tables
        self._code = code
        self._scratch = _Scratch(code)

    @classmethod
    def load(
        cls, file: TokenizerFile, library: HfTokenizer, folder: Path, *, log: Log
    ) -> UnigramEncoder:
        """Open the encoder of a tokenizer.json, from `folder` when it was built before.

        library: the same file in the `tokenizers` library
        Raises NotSupportedError with the field that another encoder has to serve.
        """
        spec = read_spec(file.spec, file.control_ids)
        problem = store.open_folder(folder)
        if problem:
            log(f"unigram cache not used: {problem}")
        kept = store.table_file(folder, file.digest)
        # Compiled code needs some folder to be written to, even if only for the moment.
        with tempfile.TemporaryDirectory(prefix="hedgerow-unigram-") as spare:
            code = _compiled(Path(spare) if problem else folder, log)
            tables = None if problem else store.read_tables(kept)
            if tables is None:
                tables = _build(spec, library)
                if not problem:
                    _keep(kept, tables, log)
            encoder = cls(tables, code)
            encoder.warm()
        return encoder

    def warm(self) -> None:
        """Load or compile every entry now, not in the first request that needs it."""
        self.encode(["a"])
        self.encode(["a", "b"])
        self.head("a", 1)

    @property
    def table_bytes(self) -> int:
        return self._tables.shape[0]

    def encode(self, texts: Sequence[str]) -> tuple[TokenIds, TokenIds]:
        """Return (ids int32 [num_tokens], cu_seqlens int32 [len(texts) + 1]).

        Raises BadInputError naming the text that holds a lone surrogate.
        """
        sources = _utf8(texts)
        if len(sources) == 1 and len(sources[0]) <= _SHORT_BYTES:
            ids = self._short(sources[0])
            cu_seqlens = np.zeros(2, np.int32)
            cu_seqlens[1] = ids.shape[0]
            return ids, cu_seqlens
        return self._many(sources)

    def head(self, text: str, budget: int) -> tuple[TokenIds, bool]:
        """Return (ids, whole): the first `budget` + 1 ids of the text, or all of them.

        Reads only as much of the text as that takes: words are emitted when nothing that
        follows can change them.
        """
        out = np.empty(budget + 1, np.int32)
        block, chars = self._scratch.block, 256 + 4 * budget
        while True:
            part = text[:chars]
            more = len(part) < len(text)
            status = self._code.encode_head(self._tables, block, out, _utf8([part])[0], int(more))
            if status >= 0:
                return out[:status], not more
            if status == -_FULL:
                return out, False
            if status == -_CUT:
                chars *= 2
            else:
                block = self._larger(block)

    def _short(self, source: bytes) -> TokenIds:
        """One text without giving up the GIL: a few microseconds are less than a hand-over."""
        block, room = self._scratch.block, len(source) + 2
        while True:
            out = np.empty(room, np.int32)
            status = self._code.encode_one(self._tables, block, out, source, 0)
            if status >= 0:
                return out[:status]
            if status == -_GROW:
                block = self._larger(block)
            else:
                room *= 4

    def _many(self, sources: list[bytes]) -> tuple[TokenIds, TokenIds]:
        bounds = np.zeros(len(sources) + 1, np.int64)
        np.cumsum([len(source) for source in sources], out=bounds[1:])
        cu_seqlens = np.zeros(len(sources) + 1, np.int32)
        source, block, first = b"".join(sources), self._scratch.block, 0
        out = np.empty(len(source) // 2 + 2 * len(sources) + 64, np.int32)
        while True:
            status, first = self._code.encode_many(
                self._tables, block, out, source, bounds, cu_seqlens, first
            )
            if status == int(Status.DONE):
                return out[: int(cu_seqlens[-1])].copy(), cu_seqlens
            if status == _GROW:
                block = self._larger(block)
            else:
                out = np.concatenate((out, np.empty_like(out)))

    def _larger(self, block: store.Bytes) -> store.Bytes:
        """A block for one word that does not fit; the thread keeps its small one."""
        return _new_scratch(self._code, 4 * int(block[cells.CAPACITY :][:8].view(np.int64)[0]))


def _utf8(texts: Sequence[str]) -> list[bytes]:
    try:
        return [text.encode() for text in texts]
    except UnicodeEncodeError:
        for k, text in enumerate(texts):
            if any("\ud800" <= c <= "\udfff" for c in text):
                reason = "holds a lone surrogate (half of a UTF-16 pair), which is no character"
                raise BadInputError(reason, param=f"input[{k}]") from None
        raise


def _new_scratch(code: Any, capacity: int) -> store.Bytes:
    block = np.zeros(scratch_bytes(capacity), np.uint8)
    code.prepare_scratch(block, capacity)
    return block


def _build(spec: UnigramSpec, library: HfTokenizer) -> store.Bytes:
    from hedgerow_gateway.tokenizer.unigram import tables

    built = tables.build(spec, tables.library_scores(library))
    block = store.roomy(built.shape[0])
    block[:] = built
    return block


def _compiled(folder: Path, log: Log) -> Any:
    """The module `entry`, its machine code cached below `folder`.

    numba looks only at the time stamp of the file that holds a cached function, not at those
    it was made from, so each version of the source gets a folder of its own.
    """
    kernels = folder / f"kernels-{store.source_hash()}"
    if not kernels.exists() and _ENTRY not in sys.modules:
        log("compiling the unigram encoder, once for this version and machine (about 10 s)")
    settings: Any = numba_config
    before = settings.CACHE_DIR
    settings.CACHE_DIR = str(kernels)
    try:
        return importlib.import_module(_ENTRY)
    finally:
        settings.CACHE_DIR = before


def _keep(file: Path, tables: store.Bytes, log: Log) -> None:
    try:
        store.write_tables(file, tables)
    except OSError as error:
        log(f"unigram tables not kept: {error}")
