"""What runs a model: the seam between the engine and its devices. No torch here.

An executor is one loaded model on one device: packed torch on a CPU, generated native code on
a CPU, or CUDA graphs. The engine thread calls `launch`; whoever waits calls `Pending.wait`.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from hedgerow_engine.weights import Weights
from hedgerow_shared.modelcard import ModelCard
from hedgerow_shared.ragged import RaggedBatch, Task

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.int8]
Bits = npt.NDArray[np.uint8]


@dataclass(slots=True, kw_only=True)
class Pass:
    """What one pass left in host memory, rows in the order of the batch; None = not asked for.

    pooled: float32 [num_rows, dimension], before a final Normalize. A sequence with spans has
        one row per span, every other sequence one
    unit: float32 [num_rows, dimension], `pooled` scaled to length 1; None lets the host do it
    int8, bits: int8 [num_rows, dimension] and uint8 [num_rows, ceil(dimension / 8)], `unit` as
        int8 and binary outputs; None lets the host make them
    logits: float32 [num_seqs, num_labels]
    sparse_rows: float32 [num_seqs, vocab_size]
    token_weights: float32 [num_tokens], a sparse weight for each token of the batch
    token_vectors: float32 [num_tokens, dim], of length 1 where the model makes them so
    first_token: leading tokens of each sequence whose vectors are left out of its row
    """

    pooled: Floats | None = None
    unit: Floats | None = None
    int8: Bytes | None = None
    bits: Bits | None = None
    logits: Floats | None = None
    sparse_rows: Floats | None = None
    token_weights: Floats | None = None
    token_vectors: Floats | None = None
    first_token: int = 0


class Pending(Protocol):
    """A pass in flight."""

    def wait(self) -> Pass:
        """Block until its bytes are here (at once on a CPU). Arrays live until `release`."""
        ...

    def release(self) -> None: ...


@dataclass(slots=True)
class Ready:
    """A pass that finished inside `launch`, as on a CPU."""

    answer: Pass

    def wait(self) -> Pass:
        return self.answer

    def release(self) -> None:
        return


class Executor(Protocol):
    """One model on one device. Only the engine thread calls `launch` and `warm`."""

    @property
    def name(self) -> str:
        """For logs: "packed", "native avx512bf16", "cuda"."""
        ...

    @property
    def dtype(self) -> str:
        """What the matrix products multiply: "float32", "bfloat16", "float16"."""
        ...

    @property
    def numerics(self) -> str:
        """Class of rounding: executors of one class give close enough vectors to mix."""
        ...

    @property
    def tasks(self) -> frozenset[Task]: ...

    def launch(self, batch: RaggedBatch, heads: tuple[Task, ...]) -> Pending:
        """Start a checked batch; `heads` are the tasks that any of its sequences wants."""
        ...

    def warm(self, seconds: float) -> None:
        """Spend at most about `seconds` on the shapes short queries will have."""
        ...

    def stats(self) -> Mapping[str, float]: ...

    def close(self) -> None:
        """Give back threads and graphs; nothing is in flight."""
        ...


class SteppedPass(Protocol):
    """A batch that runs a layer at a time."""

    def step(self) -> bool:
        """Run one more stage; True when all is done."""
        ...

    def answer(self) -> Pass: ...


@runtime_checkable
class Stepped(Protocol):
    """An executor that can pause between layers, so that a query overtakes a running batch."""

    def begin(self, batch: RaggedBatch) -> SteppedPass: ...


@runtime_checkable
class Brief(Protocol):
    """An executor that may be called from any thread, and whose short passes are so short that
    the thread that asks for one may as well run it."""

    @property
    def brief_tokens(self) -> int:
        """A batch of up to so many tokens is over in about `BRIEF_S`; 0 = none is."""
        ...


@runtime_checkable
class Expecting(Protocol):
    """An executor with threads that sleep between passes."""

    def expect(self) -> None:
        """A batch of the query or rerank lane comes within some tens of microseconds."""
        ...


BRIEF_S = 0.005
"""What an event loop may spend on one pass. Nothing else is read or answered meanwhile."""


@runtime_checkable
class Prioritised(Protocol):
    """An executor that runs bulk batches beside queries, where queries overtake them."""

    def launch_bulk(self, batch: RaggedBatch, heads: tuple[Task, ...]) -> Pending:
        """`launch` on the low priority."""
        ...


@runtime_checkable
class Warming(Protocol):
    """An executor that has shapes to prepare while nothing else is to do."""

    def warm_next(self) -> bool:
        """Prepare one shape, some 50 ms of work; False when none is left."""
        ...


class Device(Protocol):
    """Where executors live: opened once per host."""

    @property
    def name(self) -> str:
        """For logs and metrics: "cpu (1 thread, packed)", "cuda:0 NVIDIA H200"."""
        ...

    @property
    def synchronous(self) -> bool:
        """True when `launch` returns only after the work is done, so nobody need wait."""
        ...

    def scope(self) -> AbstractContextManager[None]:
        """Entered by the engine thread for its whole life: thread counts, stream, grad mode."""
        ...

    def build(self, card: ModelCard, weights: Weights) -> Executor:
        """Load one model; on the engine thread. Raises StartupError."""
        ...

    def close(self) -> None: ...
