"""One writer for all children's log lines, which a paused terminal cannot stop.

A child that cannot write its log stops serving. So the loop never waits for the terminal: a
thread writes, and when it falls behind, lines are dropped and counted.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
from typing import TextIO

_COLOURS = {"nats": "35", "worker": "32", "gateway": "36", "up": "33"}
_BACKLOG = 2000


class LogSink:
    """Writes `source | text` lines to a stream from its own thread."""

    def __init__(self, stream: TextIO = sys.stderr) -> None:
        self._stream = stream
        self._queue: queue.Queue[str | None] = queue.Queue(_BACKLOG)
        self._dropped = 0
        self._colour = stream.isatty() and not os.environ.get("NO_COLOR")
        self._thread = threading.Thread(target=self._write, name="log", daemon=True)
        self._thread.start()

    def put(self, source: str, text: str) -> None:
        """Queue a line; never blocks."""
        label = f"{source:<9} | "
        if self._colour:
            label = f"\x1b[{_COLOURS.get(source.split()[0], '0')}m{label}\x1b[0m"
        try:
            self._queue.put_nowait(f"{label}{text}\n")
        except queue.Full:
            self._dropped += 1

    def close(self, timeout_s: float = 1.0) -> None:
        """Write what is queued, but wait no longer than `timeout_s` for the terminal."""
        try:
            self._queue.put(None, timeout=timeout_s)
        except queue.Full:
            return
        self._thread.join(timeout_s)

    def _write(self) -> None:
        while (line := self._queue.get()) is not None:
            dropped, self._dropped = self._dropped, 0
            if dropped:
                line += f"up        | {dropped} log lines were dropped: nobody read them in time\n"
            try:
                self._stream.write(line)
                self._stream.flush()
            except (OSError, ValueError):  # the reader went away: go on serving, in silence
                continue
