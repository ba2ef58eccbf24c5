"""The one thread that starts all work of a host, of all its models.

On a GPU because streams and captures want one owner, on a CPU because a second pass would only
share the cores. There, a pass that is over in a few milliseconds may run on its caller's thread
instead (`run_here`), while this one has nothing to do.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TypeVar

from hedgerow_engine.executor import Device
from hedgerow_shared.errors import HedgerowError

logger = logging.getLogger(__name__)
R = TypeVar("R")
_IDLE_S = 0.25


class EngineThread:
    """Runs jobs in the order they came; one of the query or rerank lane overtakes queued bulk."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._lock = threading.Lock()
        # One token per job: waking through it takes half the time a Condition takes.
        self._tokens: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._urgent: deque[Callable[[], None]] = deque()
        self._bulk: deque[Callable[[], None]] = deque()
        # Held while a job runs, on this thread or on a caller's.
        self._busy = threading.Lock()
        self._closed = False
        self._last: Sequence[Callable[[], None]] = ()
        self._idle: deque[Callable[[], bool]] = deque()
        self._thread = threading.Thread(target=self._run, name="hedgerow-engine", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def submit(self, job: Callable[[], None], *, bulk: bool = False) -> None:
        """Queue a job. Raises HedgerowError after `close`."""
        with self._lock:
            if self._closed:
                raise HedgerowError("the engine is closed")
            (self._bulk if bulk else self._urgent).append(job)
            self._tokens.put(None)

    def run_here(self, job: Callable[[], None]) -> bool:
        """Run a job on the calling thread, at once, if nothing else runs or waits. False: it did
        not, and is to be submitted.

        Two threads need some 50 us to hand a job over and back, which a short query feels.
        """
        if self._urgent or self._bulk or self._closed or not self._busy.acquire(blocking=False):
            return False
        try:
            if self._closed:  # since it was looked at: what a job needs may be gone
                return False
            self._guarded(job)
        finally:
            self._busy.release()
        return True

    def call(self, job: Callable[[], R]) -> R:
        """Run a job on the thread and wait for its value or its exception."""
        future: Future[R] = Future()

        def run() -> None:
            try:
                future.set_result(job())
            except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
                future.set_exception(error)

        self.submit(run)
        return future.result()

    def when_idle(self, job: Callable[[], bool]) -> None:
        """Run `job` again and again while nothing is queued, until it answers False. It should
        take tens of milliseconds at most: a query may come while it runs."""
        self.call(lambda: self._idle.append(job))

    def stop_idling(self) -> None:
        """Forget the idle jobs: the host is about to close."""
        self.call(self._idle.clear)

    def run_urgent(self) -> None:
        """Run what is queued in the query and rerank lanes now; on the engine thread, between
        two layers of a bulk batch. Their tokens later wake the thread for nothing."""
        while self._urgent:
            self._guarded(self._urgent.popleft())

    def close(self, last: Sequence[Callable[[], None]] = ()) -> None:
        """Finish what is queued, then run the jobs of `last`, then end the thread."""
        with self._lock:
            self._last, self._closed = last, True
            self._tokens.put(None)
        self._thread.join()

    def _run(self) -> None:
        with self._device.scope():
            while True:
                self._next_token()
                lane = self._urgent or self._bulk
                if lane:
                    with self._busy:
                        self._guarded(lane.popleft())
                elif self._closed:
                    with self._busy:
                        for job in self._last:
                            self._guarded(job)
                    return

    def _next_token(self) -> None:
        while self._idle:
            try:
                self._tokens.get(timeout=_IDLE_S)
            except queue.Empty:
                with self._busy:
                    self._guarded(self._one_idle_job)
                continue
            return
        self._tokens.get()

    def _one_idle_job(self) -> None:
        job = self._idle.popleft()  # gone for good if it raises
        if job():
            self._idle.append(job)

    def _guarded(self, job: Callable[[], None]) -> None:
        try:
            job()
        except Exception:  # a bad callback must not end the engine
            logger.exception("engine job failed")
