"""Tables and compiled code kept on disk, so that only the first start of a model builds them.

Both are trusted like code, so the folder must belong to this user and be closed to others;
anything else is not used. Files are written under another name and renamed.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import stat
import struct
import tempfile
import zlib
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import tokenizers

from hedgerow_shared.cachefolder import cache_base

Bytes = npt.NDArray[np.uint8]
_FORMAT = struct.Struct("<8sQI")
_MAGIC = b"hedgeuni"


def cache_folder() -> Path:
    """Where tables and code of unigram models are kept."""
    return cache_base() / "unigram"


def open_folder(folder: Path) -> str:
    """Make a folder for this user alone; return why it must not be used, or ""."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.stat()
    except OSError as error:
        return f"{folder}: {error.strerror or error}"
    if not hasattr(os, "getuid"):
        return ""
    if found.st_uid != os.getuid():
        return f"{folder} belongs to another user"
    if stat.S_IMODE(found.st_mode) & 0o022:
        return f"{folder} is writable by others"
    return "" if os.access(folder, os.W_OK) else f"{folder} is not writable"


@cache
def source_hash() -> str:
    """A hash of this package's source: changed code gets tables and machine code of its own."""
    digest = hashlib.sha256()
    for file in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:16]


def table_file(folder: Path, digest: str) -> Path:
    """Where the tables of the tokenizer.json with this sha256 are kept.

    The library's version is part of the name: its Unicode tables and its way of reading numbers
    decide ids.
    """
    return folder / f"{digest[:32]}-{tokenizers.__version__}-{source_hash()}.tables"


def read_tables(file: Path) -> Bytes | None:
    """The block, or None when there is no whole one.

    It is read into memory of its own rather than mapped: the system can then use large pages,
    which spares most of the address translation misses of random look-ups.
    """
    try:
        with file.open("rb") as stream:
            magic, size, checksum = _FORMAT.unpack(stream.read(_FORMAT.size))
            if magic != _MAGIC or not 0 < size < 1 << 32:
                return None
            block = roomy(size)
            if stream.readinto(block.data) != size or stream.read(1):
                return None
    except (OSError, struct.error):
        return None
    return block if zlib.crc32(block.data) == checksum else None


def write_tables(file: Path, block: Bytes) -> None:
    """Raises OSError when the folder cannot take it."""
    descriptor, name = tempfile.mkstemp(prefix=".tables", dir=file.parent)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            raw = block.data
            stream.write(_FORMAT.pack(_MAGIC, block.shape[0], zlib.crc32(raw)))
            stream.write(raw)
        Path(name).replace(file)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise


def roomy(size: int) -> Bytes:
    """Zeroed memory that starts at a page and may be backed by large pages."""
    large = 1 << 21
    memory = mmap.mmap(-1, -(-size // large) * large)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8, size)
