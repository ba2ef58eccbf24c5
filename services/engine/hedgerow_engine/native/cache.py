"""Compiled programs kept on disk, so that only the first start of a model's shape compiles.

A cached object is machine code that this process will run, so the folder must be this user's
and closed to others, and so must each file; anything else is ignored with a reason. A file is
the SHA-256 of an object, then the object; it is written under another name and renamed. A
folder that cannot be written costs a compile per start, nothing more.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

from hedgerow_shared.cachefolder import cache_base

Log = Callable[[str], None]

_SUFFIX = ".obj"
_DIGEST_BYTES = 32


def cache_folder() -> Path:
    """Below the user's caches."""
    return cache_base() / "native"


@cache
def generator_hash() -> str:
    """A hash of the generator's own source: a changed kernel is a new program."""
    digest = hashlib.sha256()
    for file in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def program_key(*parts: object) -> str:
    """A file name for what decides the bytes of a program."""
    text = "\n".join([generator_hash(), *map(repr, parts)])
    return hashlib.sha256(text.encode()).hexdigest()[:32]


class ObjectCache:
    """Object files by key, in one private folder."""

    def __init__(self, folder: Path, log: Log) -> None:
        self._folder, self._log = folder, log

    def get(self, key: str) -> bytes | None:
        """The object, or None when there is none that this user wrote."""
        file = self._folder / (key + _SUFFIX)
        # A path that cannot be (too long a name) is one where nothing is.
        if not os.path.lexists(file):
            return None
        problem = _not_private(self._folder, directory=True) or _not_private(file, directory=False)
        if problem:
            self._log(f"native object cache ignored: {problem}")
            return None
        try:
            content = file.read_bytes()
        except OSError as error:
            self._log(f"native object cache ignored: {file}: {error.strerror}")
            return None
        digest, data = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
        if hashlib.sha256(data).digest() != digest:
            self._log(f"native object cache: {file} is damaged; compiling again")
            return None
        return data

    def put(self, key: str, data: bytes) -> None:
        """Keep an object; a folder that cannot be used is a log line."""
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            problem = _not_private(self._folder, directory=True)
            if problem:
                self._log(f"native object not cached: {problem}")
                return
            self._write(self._folder / (key + _SUFFIX), hashlib.sha256(data).digest() + data)
        except OSError as error:
            self._log(
                f"native object not cached: {self._folder}: {error.strerror}; every start "
                "compiles again (set HEDGEROW_CACHE_DIR to a folder that can be written)"
            )

    def _write(self, file: Path, content: bytes) -> None:
        # Process numbers are not enough: two containers may share the folder.
        handle, name = tempfile.mkstemp(prefix=f".{file.stem}.", dir=self._folder)
        temporary = Path(name)
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(content)
            temporary.replace(file)
        except OSError:
            temporary.unlink()
            raise


def _not_private(path: Path, *, directory: bool) -> str | None:
    """Why nobody should run code from there; None = it is this user's alone."""
    if not hasattr(os, "getuid"):
        return None
    try:
        status = path.lstat()
    except OSError as error:
        return f"{path}: {error.strerror}"
    right_kind = stat.S_ISDIR(status.st_mode) if directory else stat.S_ISREG(status.st_mode)
    if not right_kind:
        return f"{path}: not a {'folder' if directory else 'plain file'}"
    if status.st_uid != os.getuid():
        return f"{path}: belongs to another user; remove it"
    if status.st_mode & 0o022:
        return f"{path}: others may write to it; chmod 700 it"
    return None
