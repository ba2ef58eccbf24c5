"""What the driver makes of torch's errors and numbers, with torch.cuda replaced."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch

from hedgerow_engine.device.cuda.driver import CudaRuntime, CudaStream
from hedgerow_engine.device.cuda.runtime import DeviceMemoryError
from hedgerow_engine.graphs import CaptureError


class Graph:
    """torch's CUDAGraph, failing where the test says."""

    failing: str = ""
    calls: list[str]

    def __init__(self) -> None:
        Graph.calls = []

    def _step(self, name: str) -> None:
        Graph.calls.append(name)
        if name == Graph.failing:
            raise RuntimeError("CUDA error: operation not permitted\nat some line")

    def capture_begin(self, **named: Any) -> None:
        self._step("begin")

    def capture_end(self) -> None:
        self._step("end")

    def reset(self) -> None:
        self._step("reset")


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> CudaStream:
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 2))
    made = CudaStream.__new__(CudaStream)
    made._stream, made._pool = None, (0, 1)  # type: ignore[assignment]
    return made


@pytest.mark.parametrize("failing", ["begin", "end"])
def test_a_capture_that_does_not_begin_or_end_is_a_capture_error(
    failing: str, stream: CudaStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Graph, "failing", failing)
    ran: list[int] = []
    with pytest.raises(CaptureError) as error:
        stream.capture(lambda: ran.append(1))
    assert str(error.value) == "CUDA error: operation not permitted"
    assert bool(ran) == (failing == "end") and "end" in Graph.calls


def test_work_that_fails_ends_its_capture(stream: CudaStream) -> None:
    def work() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(CaptureError):
        stream.capture(work)
    assert Graph.calls == ["begin", "end", "reset"]


def test_a_pass_that_runs_out_of_memory_says_so(stream: CudaStream) -> None:
    def work() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(DeviceMemoryError):
        stream.launch(work)


def test_blocks_that_lie_idle_in_pools_are_not_free_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A graph's pool cannot take blocks of another pool, and its own are there to be replayed."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (3 << 30, 80 << 30))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 70 << 30)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 10 << 30)
    card = CudaRuntime.__new__(CudaRuntime)
    card.device = torch.device("cuda", 0)
    assert card.free_bytes() == 3 << 30
