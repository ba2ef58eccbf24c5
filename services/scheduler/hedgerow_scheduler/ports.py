"""What the scheduler asks of an engine and of an event loop: protocols, so that neither imports
the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from hedgerow_shared.modelcard import ModelCard
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
    def card(self) -> ModelCard: ...

    @property
    def dtype(self) -> str: ...

    @property
    def fingerprint(self) -> str: ...

    @property
    def max_seq_len(self) -> int: ...

    def step(self, batch: RaggedBatch, lane: Lane) -> LazyTensor:
        """Start a batch and return at once, or within a few milliseconds with the answer: an
        engine may run a short batch in the caller's thread. Batches finish in the order they
        were started (a query may overtake a bulk batch where the device can do that)."""
        ...

    def stats(self) -> Mapping[str, Any]:
        """Flat counters and gauges: numbers by name; see `hedgerow_engine.engine`."""
        ...


class Host(Protocol):
    """A device and the models on it."""

    @property
    def engines(self) -> Mapping[str, Engine]:
        """By alias."""
        ...

    @property
    def device_name(self) -> str: ...

    @property
    def overtakes(self) -> bool:
        """True when a query's step is run before bulk steps that were started earlier."""
        ...

    @property
    def alive(self) -> bool:
        """False once the thread that runs the steps has ended."""
        ...

    def close(self) -> None:
        """Finish what was started and give the device back."""
        ...


class Loop(Protocol):
    """The two calls of an event loop that a worker needs."""

    def call_soon(self, callback: Callable[[], object], /) -> object: ...

    def call_soon_threadsafe(self, callback: Callable[[], object], /) -> object: ...
