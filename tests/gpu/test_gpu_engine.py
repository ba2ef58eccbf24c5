"""The engine on a card: parity, graphs, poison, races, priorities, memory."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.gpu.bench import pipelined, vectors
from benchmarks.gpu.shapes import Shape
from hedgerow_engine.device.cuda.driver import CudaRuntime, CudaStream
from hedgerow_engine.device.cuda.runtime import Captured
from hedgerow_engine.graphs import CaptureError
from hedgerow_shared.errors import RowError
from hedgerow_shared.ragged import Lane, OutputSpec, RaggedBatch
from tests.gpu.conftest import BERT, QWEN3, SHAPES, OpenGpu, random_batch

shapes = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
RAGGED = [1, 5, 17, 40, 128, 300]


@shapes
def test_vectors_are_those_of_the_cpu_in_float32(shape: Shape, open_gpu: OpenGpu) -> None:
    batch = random_batch(shape, RAGGED)
    right = vectors(open_gpu(shape, device="cpu", dtype="float32", cpu_executor="packed"), batch)
    exact = vectors(open_gpu(shape, dtype="float32"), batch)
    assert (exact * right).sum(1).min() >= 0.9999
    short = vectors(open_gpu(shape), batch)
    assert (short * right).sum(1).min() >= 0.999


@shapes
def test_eager_captured_and_replayed_passes_are_equal(shape: Shape, open_gpu: OpenGpu) -> None:
    engine = open_gpu(shape)
    for seqlens in ([3], [16], [100], RAGGED, [7] * 40):
        batch = random_batch(shape, seqlens)
        answers = [vectors(engine, batch) for _ in range(4)]
        assert all(np.array_equal(answers[0], a) for a in answers[1:])
    stats = engine.stats()
    assert stats["graph_replayed"] > 0 and stats["graph_capture_failed"] == 0


@shapes
def test_a_replay_with_other_lengths_is_not_that_of_the_capture(
    shape: Shape, open_gpu: OpenGpu
) -> None:
    """One key, new lengths at every replay: plans and cu_seqlens are read anew."""
    eager, graphs = open_gpu(shape, graph_cache=0), open_gpu(shape)
    rng = np.random.default_rng(1)
    for i in range(30):
        first = int(rng.integers(1, 60))
        batch = random_batch(shape, [first, 60 - first, 4], seed=i)
        assert np.array_equal(vectors(eager, batch), vectors(graphs, batch))
    assert graphs.stats()["graph_captured"] == 1


@shapes
def test_a_thousand_overlapping_steps_give_the_synchronous_answers(
    shape: Shape, open_gpu: OpenGpu
) -> None:
    engine = open_gpu(shape)
    rng = np.random.default_rng(2)
    batches = [
        random_batch(shape, rng.integers(1, 64, rng.integers(1, 8)).tolist(), seed=i)
        for i in range(1000)
    ]
    for batch in batches:
        vectors(engine, batch)
    alone = [vectors(engine, batch) for batch in batches]
    flying: deque[Any] = deque()
    together: list[np.ndarray] = []

    def settle() -> None:
        together.append(np.stack([row[0] for row in flying.popleft().result().rows]))

    for batch in batches:
        if len(flying) == 2:
            settle()
        flying.append(engine.step(batch, Lane.QUERY))
    while flying:
        settle()
    assert all(np.array_equal(a, b) for a, b in zip(alone, together, strict=True))


def fill_with_nan() -> None:
    """Blocks of every size that passes ask for, freed again: small ones and large ones come
    from segments of their own."""
    blocks = [torch.full((1 << 17,), float("nan"), device="cuda") for _ in range(64)]
    blocks += [torch.full((1 << 22,), float("nan"), device="cuda") for _ in range(16)]
    del blocks


def poisoned(stream: CudaStream) -> Captured:
    """A graph whose replay fills the pool of `stream` with NaN. It must outlive the others: a
    pool goes with its last graph."""
    stream.launch(fill_with_nan)  # what eager passes of this stream allocate from
    canary = stream.capture(fill_with_nan)
    canary.replay()
    stream.synchronize()
    return canary


def test_the_canary_reaches_what_a_later_capture_allocates(runtime: CudaRuntime) -> None:
    """Otherwise the test below proves nothing."""
    stream = CudaStream(runtime.device, urgent=True)
    canary = poisoned(stream)
    for numbers in (1 << 12, 1 << 20):
        seen = runtime.zeros((numbers,), torch.float32)

        def look(seen: torch.Tensor = seen) -> None:
            seen.copy_(torch.empty_like(seen))

        looking = stream.capture(look)
        canary.replay()
        looking.replay()
        stream.synchronize()
        assert bool(seen.isnan().any())
        looking.reset()
    canary.reset()


@shapes
def test_a_poisoned_pool_does_not_reach_the_rows(shape: Shape, open_gpu: OpenGpu) -> None:
    """NaN canary: the lane's own graph pool, and what its eager passes allocate from, is full of
    NaN before a graph is captured and again before each replay."""
    clean = vectors(open_gpu(shape), random_batch(shape, RAGGED))
    engine = open_gpu(shape)
    lane, call = engine._executor._urgent, engine._thread.call  # type: ignore[attr-defined]
    canary = call(lambda: poisoned(lane.stream))
    for seqlens in (RAGGED, [3], [100]):
        batch = random_batch(shape, seqlens)
        for _ in range(4):
            call(canary.replay)
            assert np.isfinite(vectors(engine, batch)).all()
    call(canary.replay)
    got = vectors(engine, random_batch(shape, RAGGED))
    assert (got * clean).sum(1).min() > 0.9999
    stats = engine.stats()
    assert stats["graph_replayed"] >= 6 and stats["batches_isolated"] == 0
    call(lane.stream.synchronize)
    call(canary.reset)


def test_a_sequence_that_overflows_costs_only_itself(open_gpu: OpenGpu) -> None:
    engine = open_gpu(BERT)
    table = engine._executor._parts.model.encoder.embeddings.words  # type: ignore[attr-defined]
    with torch.inference_mode():
        table[7] = float("nan")
    torch.cuda.synchronize()
    batch = RaggedBatch.of([[10, 11, 12], [9, 7, 9], [20, 21]])
    rows = engine.step(batch, Lane.QUERY).result().rows
    assert isinstance(rows[1], RowError)
    alone = vectors(engine, RaggedBatch.of([[10, 11, 12], [20, 21]]))
    got = np.stack([rows[0][0], rows[2][0]])  # type: ignore[index]
    assert (got * alone).sum(1).min() > 0.9999


def test_int8_and_binary_from_the_card_are_those_of_the_host(open_gpu: OpenGpu) -> None:
    engine = open_gpu(QWEN3)
    spec = OutputSpec(dtypes=("float32", "int8", "binary"))
    base = random_batch(QWEN3, RAGGED)
    batch = RaggedBatch(base.input_ids, base.cu_seqlens, (spec,) * base.num_seqs)
    for row in engine.step(batch, Lane.QUERY).result().rows:
        assert isinstance(row, tuple)
        vector, whole, bits = row
        want = np.rint(vector * (127 / np.abs(vector).max()))
        assert np.abs(whole.astype(int) - want).max() <= 1
        assert np.array_equal(bits, np.packbits(vector > 0))


def test_a_query_overtakes_a_running_bulk_pass(open_gpu: OpenGpu) -> None:
    def slowest_query(*, priorities: bool) -> float:
        engine = open_gpu(QWEN3, priorities=priorities)
        bulk, query = random_batch(QWEN3, [512] * 64), random_batch(QWEN3, [16])
        for _ in range(3):
            vectors(engine, bulk, Lane.BULK)
            vectors(engine, query)
        stop = threading.Event()

        def load() -> None:
            while not stop.is_set():
                pipelined(engine, [bulk] * 4)

        thread = threading.Thread(target=load)
        thread.start()
        times: list[float] = []
        for _ in range(60):
            time.sleep(0.005)
            begin = time.perf_counter()
            vectors(engine, query)
            times.append(time.perf_counter() - begin)
        stop.set()
        thread.join()
        return float(np.median(times))

    assert slowest_query(priorities=True) < slowest_query(priorities=False)


def test_memory_trouble_in_a_capture_is_an_eager_answer(open_gpu: OpenGpu) -> None:
    engine = open_gpu(QWEN3)
    batch = random_batch(QWEN3, [512] * 8)
    first = vectors(engine, batch)
    original = CudaStream.capture

    def failing(self: CudaStream, work: Any) -> Any:
        def greedy() -> None:
            work()
            torch.empty(1 << 50, dtype=torch.uint8, device="cuda")

        return original(self, greedy)

    CudaStream.capture = failing  # type: ignore[method-assign]
    try:
        assert np.array_equal(vectors(engine, batch), first)
    finally:
        CudaStream.capture = original  # type: ignore[method-assign]
    assert engine.stats()["graph_capture_failed"] == 1
    assert np.array_equal(vectors(engine, batch), first)  # the stream and its pool still work
    assert engine.stats()["graph_captured"] == 1


def test_a_capture_survives_event_queries_of_another_thread(runtime: CudaRuntime) -> None:
    stream = CudaStream(runtime.device, urgent=True)
    x = runtime.zeros((1 << 16,), torch.float32)
    stop = threading.Event()
    other = torch.cuda.Stream()

    def ask() -> None:
        while not stop.is_set():
            event = torch.cuda.Event(blocking=True)
            event.record(other)
            event.synchronize()

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        for _ in range(20):
            stream.launch(lambda: x.add_(1))
            graph = stream.capture(lambda: x.add_(1))
            graph.replay()
            stream.synchronize()
            graph.reset()
    finally:
        stop.set()
        thread.join()
    assert float(x[0]) == 40.0


def test_work_that_cannot_be_captured_raises_and_leaves_the_stream_usable(
    runtime: CudaRuntime,
) -> None:
    stream = CudaStream(runtime.device, urgent=True)
    x = runtime.zeros((16,), torch.float32)
    with pytest.raises(CaptureError):
        stream.capture(lambda: print(x.add_(1).sum().item()))
    stream.launch(lambda: x.fill_(3.0))
    stream.capture(lambda: x.add_(1)).replay()
    stream.synchronize()
    assert float(x[0]) == 4.0


@shapes
def test_float8_is_close_to_the_16_bit_engine(shape: Shape, open_gpu: OpenGpu) -> None:
    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("this card multiplies no float8 with a scale for each row")
    batch = random_batch(shape, RAGGED)
    cosine = (vectors(open_gpu(shape, fp8=True), batch) * vectors(open_gpu(shape), batch)).sum(1)
    print(f"float8 cosine {cosine.min():.5f}")
    assert cosine.min() > 0.98
