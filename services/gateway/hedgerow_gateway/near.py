"""What a gateway asks of a worker that lives in the same process (hedgerow_together)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from hedgerow_shared.wire import Chunk, ChunkReply


class Near(Protocol):
    """Takes a chunk without the bus."""

    def __call__(self, chunk: Chunk, deliver: Callable[[ChunkReply], None], *, alone: bool) -> str:
        """The worker's id; empty when the chunk should go over the bus: this worker does not serve,
        would refuse it, or has work before it while there are others.

        alone: nobody else serves the model, so waiting here is as good as anywhere
        deliver: called once, after this call has returned; the rows are the receiver's to keep
        """
        ...
