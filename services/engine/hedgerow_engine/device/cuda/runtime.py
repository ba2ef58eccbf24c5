"""What the engine asks of a card: streams in launch order, events, pinned memory, capture."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

import torch
from torch import Tensor


class DeviceMemoryError(Exception):
    """The card had no memory left for an allocation."""


OUT_OF_MEMORY = (torch.OutOfMemoryError, DeviceMemoryError)
"""How that shows: outside of `Stream.launch` as torch's own error."""


class Event(Protocol):
    """A mark in a stream."""

    def record(self) -> None:
        """Mark what was queued on the stream until now."""
        ...

    def done(self) -> bool:
        """True once everything before the mark has run, or when nothing was ever marked."""
        ...

    def wait(self) -> None:
        """Block this thread until `done`, without keeping others from running."""
        ...


class Captured(Protocol):
    """A captured piece of work."""

    def replay(self) -> None:
        """Queue it on the stream it was captured on."""
        ...

    def reset(self) -> None:
        """Give its memory back; its last replay has finished."""
        ...


class Stream(Protocol):
    """Work of one priority, run in the order it was queued. Only the engine thread queues."""

    def event(self) -> Event: ...

    def current(self) -> AbstractContextManager[object]:
        """Make this the stream that foreign code (a planner) queues its copies on."""
        ...

    def launch(self, work: Callable[[], None]) -> None:
        """Queue the kernels that `work` launches. Raises DeviceMemoryError."""
        ...

    def capture(self, work: Callable[[], None]) -> Captured:
        """Record the kernels `work` launches without running them, into this stream's pool.

        Graphs of one pool share their intermediate memory, so they must never run at the same
        time: a stream runs one after another. Raises CaptureError.
        """
        ...

    def copy_in(self, target: Tensor, source: Tensor) -> None:
        """Queue a copy from pinned host memory; `source` is read when its turn comes."""
        ...

    def copy_out(self, target: Tensor, source: Tensor) -> None:
        """Queue a copy to pinned host memory; `target` is complete at the next event."""
        ...

    def synchronize(self) -> None:
        """Wait for everything queued."""
        ...


class Runtime(Protocol):
    """One card."""

    @property
    def name(self) -> str: ...

    @property
    def arch(self) -> int:
        """Compute capability as major * 10 + minor."""
        ...

    @property
    def device(self) -> torch.device: ...

    def scope(self) -> AbstractContextManager[None]:
        """What the engine thread lives in: current device, no gradients."""
        ...

    def stream(self, *, urgent: bool) -> Stream:
        """A new stream; kernels of an urgent one are scheduled before others that wait."""
        ...

    def zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Device memory."""
        ...

    def pinned(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Page-locked host memory: slow to get, so only at start and when buffers grow."""
        ...

    def free_bytes(self) -> int:
        """Memory nobody holds. Blocks that torch keeps for later count as held: a graph's pool
        cannot take those of another pool. `trim` gives back what can be."""
        ...

    def settle(self) -> None:
        """Wait for everything on every stream, as after loading weights."""
        ...

    def trim(self) -> None:
        """Give cached blocks back to the card."""
        ...
