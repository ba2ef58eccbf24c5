"""An engine that only takes time: for benchmarks of everything around an engine, and for faults.

It behaves like a device: steps run one after the other on a thread of its own, queries pass
queued bulk, and answers depend on the token ids alone, so a test can tell right from wrong.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from queue import SimpleQueue
from typing import Any

import numpy as np

from hedgerow_shared.modelcard import ModelCard
from hedgerow_shared.ragged import Array, DType, Lane, OutputSpec, RaggedBatch, Row, StepOutput

_log = logging.getLogger("hedgerow.worker")


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeSettings:
    """ms_per_4096: cost in proportion to tokens; floor_ms: least cost of a step. A step that
    holds one of the ids (-1: none) raises, kills the process, or never ends.

    version: the engine's fingerprint
    skew: added to each number of a vector before it is scaled to length 1: a broken machine
    """

    ms_per_4096: float = 16.0
    floor_ms: float = 2.0
    raise_id: int = -1
    kill_id: int = -1
    hang_id: int = -1
    version: str = "fake"
    skew: float = 0.0

    def seconds(self, num_tokens: int) -> float:
        return max(self.floor_ms, self.ms_per_4096 * num_tokens / 4096) / 1e3


def fake_vector(token_ids: Sequence[int] | Array, dimension: int) -> Array:
    """float32 [dimension] of length one that depends on the ids, and on nothing else."""
    return _vectors([np.asarray(token_ids, "<i4")], dimension)[0]


def _vectors(sequences: Sequence[Array], dimension: int) -> Array:
    """float32 [num_seqs, dimension]: two places each in a table of noise, added.

    All at once, because this holds the GIL and the work of a device does not: whoever measures
    what is around the engine must not measure this.
    """
    seeds = np.array([zlib.crc32(ids.tobytes()) for ids in sequences], np.uint32)
    noise = _noise(dimension)
    vectors: Array = noise[seeds & 0xFFFF] + noise[seeds >> 16]
    vectors /= np.sqrt(np.einsum("ij,ij->i", vectors, vectors))[:, None]
    return vectors


@cache
def _noise(dimension: int) -> Array:
    """float32 [65536, dimension]: every stretch of one row of random numbers."""
    numbers = np.random.default_rng(0).standard_normal(0xFFFF + dimension, np.float32)
    return np.lib.stride_tricks.sliding_window_view(numbers, dimension)


class FakeLazy:
    """The port's LazyTensor over a Future."""

    def __init__(self) -> None:
        self.future: Future[StepOutput] = Future()

    def done(self) -> bool:
        return self.future.done()

    def add_done_callback(self, callback: Callable[[], None]) -> None:
        self.future.add_done_callback(lambda _: callback())

    def result(self) -> StepOutput:
        return self.future.result()

    def release(self) -> None: ...


class FakeHost:
    """One fake device with its thread, and an engine for each model."""

    device_name = "fake"
    overtakes = True

    def __init__(self, cards: Mapping[str, ModelCard], settings: FakeSettings) -> None:
        self.settings = settings
        # One token per job: half the price of a Condition on the way to the thread.
        self._tokens: SimpleQueue[None] = SimpleQueue()
        self._urgent: deque[Callable[[], None]] = deque()
        self._bulk: deque[Callable[[], None]] = deque()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="fake-device", daemon=True)
        self._thread.start()
        self.engines = {alias: FakeEngine(self, card) for alias, card in cards.items()}

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def submit(self, job: Callable[[], None], lane: Lane) -> None:
        (self._bulk if lane is Lane.BULK else self._urgent).append(job)
        self._tokens.put(None)

    def close(self) -> None:
        """Finish what is queued, then end the thread."""
        self._closed = True
        self._tokens.put(None)
        self._thread.join()

    def _run(self) -> None:
        while True:
            self._tokens.get()
            queue = self._urgent or self._bulk
            if queue:
                queue.popleft()()
            elif self._closed:
                return


class FakeEngine:
    """One model on the fake device: the dimension and lengths are its card's."""

    dtype = "float32"

    def __init__(self, host: FakeHost, card: ModelCard) -> None:
        self.card = card
        self.fingerprint = host.settings.version
        self._host = host
        self._counts = {"batches": 0, "sequences": 0, "tokens": 0}

    @property
    def max_seq_len(self) -> int:
        return self.card.max_seq_len

    def step(self, batch: RaggedBatch, lane: Lane) -> FakeLazy:
        lazy = FakeLazy()
        self._host.submit(lambda: self._pass(batch, lazy), lane)
        return lazy

    def stats(self) -> Mapping[str, Any]:
        return dict(self._counts)

    def _pass(self, batch: RaggedBatch, lazy: FakeLazy) -> None:
        end_s = time.perf_counter() + self._host.settings.seconds(batch.num_tokens)
        try:
            self._poison(batch)
            rows = self._rows(batch)
        except RuntimeError as error:
            lazy.future.set_exception(error)
            return
        time.sleep(max(end_s - time.perf_counter(), 0.0))
        self._counts["batches"] += 1
        self._counts["sequences"] += batch.num_seqs
        self._counts["tokens"] += batch.num_tokens
        lazy.future.set_result(StepOutput(rows))

    def _poison(self, batch: RaggedBatch) -> None:
        settings, ids = self._host.settings, batch.input_ids
        if settings.kill_id >= 0 and settings.kill_id in ids:
            os.kill(os.getpid(), signal.SIGKILL)
        if settings.hang_id >= 0 and settings.hang_id in ids:
            _log.warning("fake device: hanging for ever, as asked")
            threading.Event().wait()
        if settings.raise_id >= 0 and settings.raise_id in ids:
            raise RuntimeError(f"token id {settings.raise_id} is poison")

    def _rows(self, batch: RaggedBatch) -> list[Row]:
        skew, cu = np.float32(self._host.settings.skew), batch.cu_seqlens.tolist()
        sequences = [batch.input_ids[a:b].astype("<i4", copy=False) for a, b in pairwise(cu)]
        vectors = _vectors(sequences, self.card.dimension)
        if skew:
            vectors += skew
            vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        if set(batch.outputs) == {OutputSpec()}:
            return [(vector,) for vector in vectors]
        logits: Array | None = None
        rows: list[Row] = []
        for i, spec in enumerate(batch.outputs):
            if spec.task == "embed":
                rows.append(tuple(_as(a, dtype) for a, dtype in _wanted(spec, vectors[i])))
                continue
            if logits is None:
                logits = _vectors(sequences, max(self.card.num_labels, 1)) + skew
            rows.append((logits[i],))
        return rows


def _wanted(spec: OutputSpec, vector: Array) -> list[tuple[Array, DType]]:
    full = vector.shape[0]
    found: list[tuple[Array, DType]] = []
    for dtype, dimension in spec.wanted(full):
        prefix = vector[:dimension]
        shorter = prefix.shape[0] < full
        found.append((prefix / np.linalg.norm(prefix) if shorter else vector, dtype))
    return found


def _as(vector: Array, dtype: DType) -> Array:
    if dtype == "binary":
        return np.packbits(vector > 0)
    if dtype == "int8":
        return np.round(vector * 127).astype(np.int8)
    return vector.astype(dtype, copy=False)
