"""The runtime on a real card, through torch.cuda. Nothing above this file names torch.cuda."""

from __future__ import annotations

import gc
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import Tensor

from hedgerow_engine.device.cuda.runtime import Captured, DeviceMemoryError, Event, Stream
from hedgerow_engine.graphs import CaptureError


class CudaEvent:
    """Blocking and untimed: the waiting thread sleeps instead of burning a core."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._stream = stream
        self._event = torch.cuda.Event(enable_timing=False, blocking=True)

    def record(self) -> None:
        self._event.record(self._stream)

    def done(self) -> bool:
        return self._event.query()

    def wait(self) -> None:
        self._event.synchronize()


class CudaCaptured:
    """A CUDA graph of one stream."""

    def __init__(self, graph: torch.cuda.CUDAGraph, stream: torch.cuda.Stream) -> None:
        self._graph, self._stream = graph, stream

    def replay(self) -> None:
        with torch.cuda.stream(self._stream):
            self._graph.replay()

    def reset(self) -> None:
        self._graph.reset()


class CudaStream:
    """One stream, and the graph pool of what is captured on it."""

    def __init__(self, device: torch.device, *, urgent: bool) -> None:
        self._stream = torch.cuda.Stream(device, priority=-1 if urgent else 0)
        self._pool = torch.cuda.graph_pool_handle()

    def event(self) -> Event:
        return CudaEvent(self._stream)

    def current(self) -> AbstractContextManager[object]:
        return torch.cuda.stream(self._stream)

    def launch(self, work: Callable[[], None]) -> None:
        try:
            with torch.cuda.stream(self._stream):
                work()
        except torch.OutOfMemoryError as error:
            raise DeviceMemoryError(_first_line(error)) from error

    def capture(self, work: Callable[[], None]) -> Captured:
        # Not `torch.cuda.graph`: that synchronises the card and empties both caches on entry.
        graph = torch.cuda.CUDAGraph()
        with _no_collector(), torch.cuda.stream(self._stream):
            # thread_local: the waiter thread may query events while we capture.
            try:
                graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                work()
            except Exception as error:
                self._abandon(graph)
                raise CaptureError(_first_line(error)) from error
            try:
                graph.capture_end()
            except RuntimeError as error:
                self._pool = torch.cuda.graph_pool_handle()
                raise CaptureError(_first_line(error)) from error
        return CudaCaptured(graph, self._stream)

    def copy_in(self, target: Tensor, source: Tensor) -> None:
        assert source.is_pinned(), "a pageable source would be copied at once, or torn"
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)

    def copy_out(self, target: Tensor, source: Tensor) -> None:
        assert target.is_pinned(), "a pageable target is not complete at the event"
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)

    def synchronize(self) -> None:
        self._stream.synchronize()

    def _abandon(self, graph: torch.cuda.CUDAGraph) -> None:
        """End a capture that began badly or whose work raised: the stream runs kernels again."""
        try:
            graph.capture_end()
        except RuntimeError:
            # An invalidated capture leaves its pool in the middle of an allocation.
            self._pool = torch.cuda.graph_pool_handle()
            return
        graph.reset()


class CudaRuntime:
    """Satisfies `Runtime`."""

    def __init__(self, index: int) -> None:
        self.device = torch.device("cuda", index)
        major, minor = torch.cuda.get_device_capability(self.device)
        self.arch = major * 10 + minor
        self.name = f"cuda:{index} {torch.cuda.get_device_name(self.device)}"

    def scope(self) -> AbstractContextManager[None]:
        return self._scope()

    def stream(self, *, urgent: bool) -> Stream:
        return CudaStream(self.device, urgent=urgent)

    def zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        tensor = torch.zeros(shape, dtype=dtype, device=self.device)
        # Filled on the default stream: no other stream may use it before that.
        torch.cuda.current_stream(self.device).synchronize()
        return tensor

    def pinned(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device="cpu", pin_memory=True)

    def free_bytes(self) -> int:
        # Not what torch holds idle: most of that lies in the pools of graphs, for their replays.
        free, _ = torch.cuda.mem_get_info(self.device)
        return free

    def settle(self) -> None:
        torch.cuda.synchronize(self.device)

    def trim(self) -> None:
        torch.cuda.empty_cache()

    @contextmanager
    def _scope(self) -> Generator[None]:
        with torch.cuda.device(self.device), torch.inference_mode():
            yield


@contextmanager
def _no_collector() -> Generator[None]:
    """A collection during a capture may free what the driver does not let go then."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n", 1)[0][:200] or type(error).__name__
