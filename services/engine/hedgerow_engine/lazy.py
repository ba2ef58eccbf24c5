"""A batch that was started: its rows arrive later, from another thread."""

from __future__ import annotations

import threading
from collections.abc import Callable

from hedgerow_shared.ragged import StepOutput


class LazyTensor:
    """The answer of one step, settled once by the engine's side and read once by the scheduler's.

    Callbacks run on the thread that settles it (the engine thread on a CPU, the waiter of
    copy events on a GPU), so they must only hand over: `loop.call_soon_threadsafe`.
    """

    __slots__ = ("_callbacks", "_done", "_error", "_event", "_lock", "_on_release", "_output")

    def __init__(self) -> None:
        self._done = False
        # Made by whoever has to wait: a short query is settled before anybody asks.
        self._event: threading.Event | None = None
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], None]] = []
        self._output: StepOutput | None = None
        self._error: BaseException | None = None
        self._on_release: Callable[[], None] | None = None

    def done(self) -> bool:
        """True once `result` will not block."""
        return self._done

    def add_done_callback(self, callback: Callable[[], None]) -> None:
        """Call `callback` once when done, at once if already done."""
        with self._lock:
            if not self._done:
                self._callbacks.append(callback)
                return
        callback()

    def result(self) -> StepOutput:
        """Wait and return the rows; raises what the whole step raised."""
        if not self._done:
            self._wait()
        if self._error is not None:
            raise self._error
        assert self._output is not None, "settled without an answer"
        return self._output

    def release(self) -> None:
        """The rows were copied out: a pinned buffer behind them goes back to its pool."""
        on_release, self._on_release = self._on_release, None
        if on_release is not None:
            on_release()

    def settle(
        self,
        output: StepOutput | None,
        error: BaseException | None = None,
        on_release: Callable[[], None] | None = None,
    ) -> None:
        """Give the answer, or the error of the whole step. Engine side only, exactly once."""
        with self._lock:
            assert not self._done, "a step is settled once"
            self._output, self._error, self._on_release = output, error, on_release
            self._done = True
            if self._event is not None:
                self._event.set()
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    def _wait(self) -> None:
        with self._lock:
            if self._done:
                return
            if self._event is None:
                self._event = threading.Event()
        self._event.wait()
