"""How far a job is: counted from what is stored, so that no crash can make it wrong.

Each stored part and each stored result is one message whose headers hold its counts, under a
subject of its own, so nothing is counted twice. A checkpoint only saves reading them again.
"""

from __future__ import annotations

from collections import deque
from typing import Literal

import msgspec

from hedgerow_shared.jobs import Tally

_RATE_WINDOW_NS = 10_000_000_000


class Progress(msgspec.Struct, kw_only=True):
    """Counts of a job over all messages up to a sequence of the stream HEDGEROW_RESULT.

    submitted: rows whose submission was stored completely; tokens: theirs
    done, failed: rows with a vector, and with an error
    last_ns: when the newest result was stored, by the server's clock
    """

    v: Literal[1] = 1
    upto: int = 0
    submitted: int = 0
    tokens: int = 0
    done: int = 0
    failed: int = 0
    last_ns: int = 0

    def add(self, subject: str, seq: int, time_ns: int, counts: Tally) -> bool:
        """Count one stored message; False for one that was counted before."""
        if seq <= self.upto:
            return False
        self.upto = seq
        if kind_of(subject) == "part":
            self.submitted += counts.rows
            self.tokens += counts.tokens
        else:
            self.done += counts.rows - counts.failed
            self.failed += counts.failed
            self.last_ns = max(self.last_ns, time_ns)
        return True

    @property
    def settled(self) -> int:
        return self.done + self.failed


def kind_of(subject: str) -> str:
    """hedgerow.result.<job>.<kind>.<name>: part or chunk."""
    return subject.split(".")[3]


def encode(progress: Progress) -> bytes:
    return msgspec.json.encode(progress)


def decode(data: bytes) -> Progress | None:
    """None for a checkpoint that cannot be read: then everything is counted again."""
    try:
        return msgspec.json.decode(data, type=Progress)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


class Rate:
    """Rows per second over the last ten seconds, by the times results were stored."""

    def __init__(self) -> None:
        self._recent: deque[tuple[int, int]] = deque()

    def add(self, time_ns: int, rows: int) -> None:
        self._recent.append((time_ns, rows))
        self._drop_before(time_ns - _RATE_WINDOW_NS)

    def per_s(self, now_ns: int) -> float:
        """0 when nothing came within the window."""
        self._drop_before(now_ns - _RATE_WINDOW_NS)
        if not self._recent:
            return 0.0
        span_ns = max(now_ns - self._recent[0][0], 1_000_000_000)
        return sum(rows for _, rows in self._recent) / (span_ns / 1e9)

    def _drop_before(self, time_ns: int) -> None:
        while self._recent and self._recent[0][0] < time_ns:
            self._recent.popleft()
