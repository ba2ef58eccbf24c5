"""What a GPU's attention and pooling know of a batch: lengths on the device, bounds on the host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

Copy = Callable[[Tensor, Tensor], None]


@dataclass(slots=True)
class Lengths:
    """The lengths of one graph key. Device tensors keep their addresses for ever, because a
    graph has them baked in; what they hold is new at every pass.

    cu_seqlens: device int32 [slots + 1]: the sequences, one dummy that owns the padding, then
        empty ones that repeat `tokens`
    pool_starts, pool_ends: device int32 [slots]; an empty range pools to zeros
    tokens: the padded count
    longest: upper bound of a sequence, the dummy included
    host_cu_seqlens: the same numbers in the staging slot of the pass being launched (pinned)
    tables: pinned plan tables of that slot, one for each planned kernel of a pass
    device_tables: where they are copied to: of one stream, because a pass on another may run
        at the same time
    """

    cu_seqlens: Tensor
    pool_starts: Tensor
    pool_ends: Tensor
    tokens: int
    longest: int
    host_cu_seqlens: Tensor
    tables: tuple[Tensor, ...] = ()
    device_tables: tuple[Tensor, ...] = ()

    @property
    def slots(self) -> int:
        return self.pool_starts.shape[0]
