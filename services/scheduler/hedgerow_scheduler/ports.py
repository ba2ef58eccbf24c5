"""What the scheduler asks of an engine: two protocols, so that neither imports the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from hedgerow_shared.ragged import Lane, RaggedBatch, StepOutput


class LazyTensor(Protocol):
    """A batch that was started and whose bytes are not here yet."""

    def done(self) -> bool:
        """True once `result` will not block."""
        ...

    def add_done_callback(self, callback: Callable[[], None]) -> None:
        """Call `callback` once when done: from any thread, or at once if already done."""
        ...

    def result(self) -> StepOutput:
        """Wait and return the rows; raises what the whole step raised. Arrays stay valid
        until `release`."""
        ...

    def release(self) -> None:
        """The rows were copied out: their buffer may be used again."""
        ...


class Engine(Protocol):
    """One loaded model on one device."""

    @property
    def fingerprint(self) -> str: ...

    @property
    def max_seq_len(self) -> int: ...

    def step(self, batch: RaggedBatch, lane: Lane) -> LazyTensor:
        """Start a batch and return at once. Batches finish in the order they were started
        (a query may overtake a bulk batch where the device can do that)."""
        ...

    def stats(self) -> Mapping[str, Any]:
        """Flat counters and gauges: numbers by name; see `hedgerow_engine.engine`."""
        ...
