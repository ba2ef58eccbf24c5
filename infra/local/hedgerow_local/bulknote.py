"""OUT.state and OUT.part: how far a run of `hedgerow bulk` came, and what it has collected."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Annotated

import msgspec

from hedgerow_local.bulkrows import BulkOptions
from hedgerow_shared.errors import StartupError

_Count = Annotated[int, msgspec.Meta(ge=0)]


@dataclass(slots=True)
class State:
    """How far it went: rows acknowledged, the next page, bytes of the output that are good, and
    which versions of the model its vectors are of (one, unless workers were changed).

    of: the digest of the options it belongs to
    """

    job: str
    of: str = ""
    sent: _Count = 0
    next: _Count = 1
    bytes: _Count = 0
    good: _Count = 0
    failed: _Count = 0
    fingerprints: list[str] = field(default_factory=list[str])

    @classmethod
    def read(cls, options: BulkOptions) -> State | None:
        """What an earlier run of the same command noted; None for no note, or one of another.

        Raises StartupError for a note that cannot be read.
        """
        found = cls.read_any(options)
        return found if found is not None and found.of == options.digest else None

    @classmethod
    def read_any(cls, options: BulkOptions) -> State | None:
        """The same, but also the note of another file or of other options."""
        try:
            return msgspec.json.decode(options.note.read_bytes(), type=cls)
        except FileNotFoundError:
            return None
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise StartupError(
                f"{options.note}: damaged ({error}); remove it to compute all again"
            ) from None

    def write(self, options: BulkOptions) -> None:
        """Replace the note in one step."""
        with options.fresh.open("wb") as file:
            file.write(msgspec.json.encode(self))
            file.flush()
            os.fsync(file.fileno())
        options.fresh.replace(options.note)


@contextmanager
def open_part(options: BulkOptions) -> Generator[IO[bytes]]:
    """The file to collect in, which no other command holds. What is in it stays.

    Raises StartupError when another one writes there, OSError when nobody can.
    """
    with _locked(options.part) as part:
        try:
            yield part
        finally:
            empty = not os.fstat(part.fileno()).st_size
            if empty and not options.note.exists() and _is_at(part, options.part):
                options.part.unlink()


def _locked(path: Path) -> IO[bytes]:
    while True:
        part = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b")
        try:
            fcntl.flock(part, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # A command that has just finished renames its part: then this is its output.
            if _is_at(part, path):
                return part
        except BlockingIOError:
            part.close()
            raise StartupError(
                f"{path}: another `hedgerow bulk` writes it; wait for it, or choose another --out"
            ) from None
        part.close()


def _is_at(file: IO[bytes], path: Path) -> bool:
    """False for an open file that was renamed or removed."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def go_on(part: IO[bytes], options: BulkOptions, good_bytes: int) -> None:
    """Be at the end of what the note vouches for. Raises StartupError where it is not there."""
    found = os.fstat(part.fileno()).st_size
    if found < good_bytes:
        raise StartupError(
            f"{options.part}: lost or cut; {options.note} knows of {good_bytes} bytes of results "
            f"in it, {found} are there, and the server has dropped them since: remove "
            f"{options.note} to compute all again" + " under another --job" * bool(options.job)
        )
    part.truncate(good_bytes)
    part.seek(good_bytes)
