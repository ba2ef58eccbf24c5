"""A thread that waits for passes in the order they were launched, for devices that answer later.

On one stream events complete in launch order, so a plain queue is enough and the engine thread
never blocks on a copy.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

logger = logging.getLogger(__name__)


class Waiter:
    """Runs `submit`ted waits one after another, off the engine thread."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="hedgerow-waiter", daemon=True)
        self._thread.start()

    def submit(self, wait: Callable[[], None]) -> None:
        self._jobs.put(wait)

    def close(self) -> None:
        """Wait for everything submitted before, then end the thread."""
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (wait := self._jobs.get()) is not None:
            try:
                wait()
            except Exception:  # one bad callback must not stop the answers of all others
                logger.exception("waiting for a pass failed")
