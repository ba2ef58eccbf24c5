"""How an answer leaves the card: one block of rows, one copy, one event, a pool of buffers.

A pass writes its outputs into a static block outside the graph pool (the next replay of any
graph reuses the pool). Behind the pass the used rows are copied to pinned memory; the event
after that copy says that the pass is over and that its bytes are here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy.typing as npt
import torch
from torch import Tensor

from hedgerow_engine.device.cuda.runtime import Event, Runtime, Stream
from hedgerow_engine.executor import Pass

PER_TOKEN = frozenset({"token_weights", "token_vectors"})


class Field(NamedTuple):
    """One output: bytes [start, start + width) of a row, as elements of `dtype`."""

    start: int
    width: int
    dtype: torch.dtype
    flat: bool


class Format(NamedTuple):
    """Rows of several outputs side by side, each 16-byte aligned."""

    fields: Mapping[str, Field]
    row_bytes: int

    @classmethod
    def of(cls, samples: Mapping[str, Tensor]) -> Format:
        """The format that holds rows like those of `samples` ([rows] or [rows, columns])."""
        fields: dict[str, Field] = {}
        start = 0
        for name, sample in samples.items():
            columns = 1 if sample.ndim == 1 else sample.shape[1]
            width = columns * sample.element_size()
            fields[name] = Field(start, width, sample.dtype, sample.ndim == 1)
            start += -(-width // 16) * 16
        return cls(fields, start)

    def views(self, rows: Tensor) -> dict[str, Tensor]:
        """Typed views of uint8 rows [n, row_bytes]."""
        views: dict[str, Tensor] = {}
        for name, (start, width, dtype, flat) in self.fields.items():
            part = rows[:, start : start + width].view(dtype)
            views[name] = part[:, 0] if flat else part
        return views


class Block:
    """Static device rows and pinned buffers of one format."""

    def __init__(self, runtime: Runtime, form: Format, *, capacity: int, buffers: int) -> None:
        self._runtime, self._form, self._capacity = runtime, form, capacity
        self._rows = runtime.zeros((capacity, form.row_bytes), torch.uint8)
        self._device = form.views(self._rows)
        self._free: deque[Tensor] = deque(self._buffer() for _ in range(buffers))
        self.grown = 0

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._form.fields)

    def write(self, outputs: Mapping[str, Tensor], rows: int) -> None:
        """Copy a pass's outputs into the block, on the device, as part of the pass."""
        for name in self._form.fields:
            self._device[name][:rows].copy_(outputs[name][:rows])

    def send(self, stream: Stream, rows: int) -> Tensor:
        """Queue the copy of the first rows to a pinned buffer, which it returns."""
        if self._free:
            buffer = self._free.popleft()
        else:
            buffer = self._buffer()
            self.grown += 1
        stream.copy_out(buffer[:rows], self._rows[:rows])
        return buffer

    def give_back(self, buffer: Tensor) -> None:
        self._free.append(buffer)

    def arrays(self, buffer: Tensor, rows: int) -> dict[str, npt.NDArray[Any]]:
        """What arrived, as views of the pinned buffer."""
        return {n: t.numpy() for n, t in self._form.views(buffer[:rows]).items()}

    def _buffer(self) -> Tensor:
        return self._runtime.pinned((self._capacity, self._form.row_bytes), torch.uint8)


@dataclass(slots=True)
class Sent:
    """Rows on their way out of a block. limits: rows of each output that are real."""

    block: Block
    buffer: Tensor
    limits: Mapping[str, int]

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        rows = max(self.limits.values())
        arrays = self.block.arrays(self.buffer, rows)
        return {name: array[: self.limits[name]] for name, array in arrays.items()}


class CudaPending:
    """A pass in flight. Satisfies `Pending`; waited for on the waiter thread."""

    def __init__(self, event: Event, sent: list[Sent], first_token: int) -> None:
        self._event, self._sent, self._first_token = event, sent, first_token

    def wait(self) -> Pass:
        """Sleep until the bytes are here. The arrays are views of pinned memory."""
        self._event.wait()
        arrays: dict[str, npt.NDArray[Any]] = {}
        for sent in self._sent:
            arrays |= sent.arrays()
        return Pass(**arrays, first_token=self._first_token)

    def release(self) -> None:
        """The arrays were copied: the buffers serve the next pass."""
        done, self._sent = self._sent, []
        for sent in done:
            sent.block.give_back(sent.buffer)
