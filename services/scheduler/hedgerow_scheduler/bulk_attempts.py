"""Who ended the worker? What is remembered of a bulk chunk that was delivered before. Pure.

A chunk is delivered again when its worker died with it, but that worker held others as well, so
a count of deliveries would condemn the neighbours of a killer along with it. From its second
delivery on a chunk therefore runs alone, and what is about to run is written down before. If it
dies again it runs row by row, and only the row that was running when a worker died, twice, is
given up.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from hedgerow_shared.errors import BadChunkError

VERSION = 1
STRIKES = 2
"""Workers that may die on one row while it runs alone. One death may be chance."""


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """The note about one chunk; it stays in the bucket when a worker dies.

    running: somebody began and has not said how it ended
    by_row: it is run row by row; before that, as a whole
    row: the row that runs; -1: none
    strikes: workers that died, by row
    """

    v: Literal[1] = VERSION
    running: bool = True
    by_row: bool = False
    row: int = -1
    strikes: dict[int, int] = {}

    @property
    def given_up(self) -> list[int]:
        """Rows that will not be run again."""
        return sorted(row for row, count in self.strikes.items() if count >= STRIKES)

    def at(self, row: int) -> Attempt:
        """The note to write before a row runs."""
        return msgspec.structs.replace(self, row=row)

    def ended(self) -> Attempt:
        """The note to write when this worker stops with it and did not die."""
        return msgspec.structs.replace(self, running=False, row=-1)


def begin(last: Attempt | None) -> Attempt:
    """The note to write before a chunk that was delivered before runs again."""
    if last is None:
        return Attempt()
    if not last.running:
        return msgspec.structs.replace(last, running=True, row=-1)
    if not last.by_row:
        return Attempt(by_row=True)
    strikes = dict(last.strikes)
    if last.row >= 0:
        strikes[last.row] = strikes.get(last.row, 0) + 1
    return Attempt(by_row=True, strikes=strikes)


def key(job: str, chunk: str) -> str:
    """Where the note is kept in the bucket of jobs."""
    return f"attempt.{job}.{chunk}"


def encode(attempt: Attempt) -> bytes:
    return msgspec.json.encode(attempt)


def decode(data: bytes) -> Attempt:
    """Raises BadChunkError for anything that is not one."""
    try:
        return msgspec.json.decode(data, type=Attempt)
    except (msgspec.DecodeError, ValueError) as error:
        raise BadChunkError(f"attempt not readable: {error}") from None
