"""How a batch reaches the card: one pinned buffer, one copy, and a ring of such buffers.

While pass N waits on the stream, its copy has not read the host buffer yet; writing pass N+1
there would feed N the wrong tokens without any error. So there is one slot more than batches on
the device, and a slot is taken again only after the event behind its copies.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hedgerow_engine.attention.lengths import Lengths
from hedgerow_engine.device.cuda.runtime import Event, Runtime, Stream
from hedgerow_engine.graphs import Key
from hedgerow_engine.staging import PAD, Int32s, Layout, fill
from hedgerow_shared.ragged import RaggedBatch


class Sections(NamedTuple):
    """Where each input of one key lies in a staging buffer: int32 places, 16-byte aligned."""

    input_ids: slice
    positions: slice
    token_types: slice
    cu_seqlens: slice
    pool_starts: slice
    pool_ends: slice
    size: int

    @classmethod
    def of(cls, tokens: int, slots: int) -> Sections:
        places: list[slice] = []
        start = 0
        for length in (tokens, tokens, tokens, slots + 1, slots, slots):
            places.append(slice(start, start + length))
            start += -(-length // 4) * 4
        ids, positions, types, bounds, starts, ends = places
        return cls(ids, positions, types, bounds, starts, ends, start)


@dataclass(slots=True)
class Slot:
    """One pinned buffer. numbers and buffer are the same memory; tables are plan tables."""

    buffer: Tensor
    numbers: Int32s
    tables: tuple[Tensor, ...]
    copied: Event


class StagingRing:
    """Pinned slots taken in turn."""

    def __init__(
        self,
        runtime: Runtime,
        stream: Stream,
        *,
        slots: int,
        places: int,
        tables: int,
        table_bytes: int,
    ) -> None:
        def one() -> Slot:
            buffer = runtime.pinned((places,), torch.int32)
            plans = tuple(runtime.pinned((table_bytes,), torch.uint8) for _ in range(tables))
            return Slot(buffer, buffer.numpy(), plans, stream.event())

        self._slots = [one() for _ in range(slots)]
        self._next = 0
        self.waits = 0

    @property
    def first(self) -> Slot:
        return self._slots[0]

    def take(self) -> Slot:
        """The next slot, once the copies that read it last have finished."""
        slot = self._slots[self._next]
        self._next = (self._next + 1) % len(self._slots)
        self.gate(slot)
        return slot

    def gate(self, slot: Slot) -> None:
        """Wait until the card has read the slot; normally it has long done so."""
        if not slot.copied.done():
            self.waits += 1
            slot.copied.wait()


def write(slot: Slot, batch: RaggedBatch, layout: Layout, key: Key) -> None:
    """Fill a slot for `key`. The padding belongs to one dummy sequence.

    Rows that no sequence covers are never written by ragged kernels, and a stale NaN there
    reaches real rows; so the tail is filled anew at every pass, and every row is finite.
    """
    at, numbers = Sections.of(key.tokens, key.slots), slot.numbers
    assert layout.num_seqs < key.slots, "the dummy sequence needs a slot of its own"
    fill(batch, layout, numbers[at.input_ids], numbers[at.positions], numbers[at.token_types])
    bounds = numbers[at.cu_seqlens]
    bounds[: layout.num_seqs + 1] = layout.cu_seqlens
    bounds[layout.num_seqs + 1 :] = key.tokens
    for place, values in ((at.pool_starts, layout.pool_starts), (at.pool_ends, layout.pool_ends)):
        ranges = numbers[place]
        ranges[: layout.num_rows] = values
        ranges[layout.num_rows :] = 0


class StaticInputs:
    """The device side: one int32 buffer in which every key has its own fixed sections.

    tables: plan tables of this stream
    """

    def __init__(self, runtime: Runtime, places: int, *, tables: int, table_bytes: int) -> None:
        self.buffer = runtime.zeros((places,), torch.int32)
        self.tables = tuple(runtime.zeros((table_bytes,), torch.uint8) for _ in range(tables))

    def lengths(self, key: Key, longest: int, host: Tensor) -> Lengths:
        """The length inputs of a key. `host` is any int32 buffer of a ring."""
        at = Sections.of(key.tokens, key.slots)
        return Lengths(
            cu_seqlens=self.buffer[at.cu_seqlens],
            pool_starts=self.buffer[at.pool_starts],
            pool_ends=self.buffer[at.pool_ends],
            tokens=key.tokens,
            longest=longest,
            host_cu_seqlens=host[at.cu_seqlens],
            device_tables=self.tables,
        )


def synthetic(
    key: Key, max_seq_len: int
) -> list[np.ndarray[tuple[int], np.dtype[np.int32]]] | None:
    """Sequences of pad tokens that fill the shape `key`, for warming; None if none can."""
    count = -(-key.tokens // max_seq_len)
    if count >= key.slots:
        return None
    even = key.tokens // count
    lengths = [even + (i < key.tokens % count) for i in range(count)]
    return [np.full(n, PAD, np.int32) for n in lengths]
