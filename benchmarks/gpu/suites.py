"""Suites A to C inside the engine, each beside its roofline floor. No gateway, no network."""

from __future__ import annotations

import threading
import time

from benchmarks.gpu.bench import Bench, pipelined, random_batch, timed, vectors
from hedgerow_engine.engine import Engine
from hedgerow_shared.ragged import Lane, RaggedBatch


def latency(bench: Bench) -> None:
    """A: one sequence at a time."""
    for shape in bench.shapes:
        with bench.engine(shape, warmup_s=1.0) as engine:
            for tokens in bench.sizes.latency_tokens:
                batch = random_batch(shape, [tokens])
                end = bench.until(3.0)
                times = timed(
                    lambda b=batch: vectors(engine, b), samples=bench.sizes.samples, end=end
                )
                floor = bench.floor_ms(shape, [tokens])
                bench.add_times("A", f"1 x {tokens}", shape.name, times, extra={"floor_ms": floor})


def scoring(bench: Bench) -> None:
    """B: one request of several sequences."""
    for shape in bench.shapes:
        with bench.engine(shape, warmup_s=1.0) as engine:
            for count in bench.sizes.scoring:
                seqlens = [bench.sizes.scoring_tokens] * count
                batch = random_batch(shape, seqlens)
                end = bench.until(3.0)
                times = timed(
                    lambda b=batch: vectors(engine, b, Lane.RERANK),
                    samples=bench.sizes.samples,
                    end=end,
                )
                case = f"{count} x {bench.sizes.scoring_tokens}"
                floor = bench.floor_ms(shape, seqlens)
                bench.add_times("B", case, shape.name, times, extra={"floor_ms": floor})


def throughput(bench: Bench) -> None:
    """C: four submitters of 100 sequences each, cut to the pass budget as a worker cuts them."""
    sizes = bench.sizes
    for shape in bench.shapes:
        with bench.engine(shape) as engine:
            for tokens in sizes.bulk_tokens:
                each = max(1, sizes.budget_tokens // tokens)
                whole, rest = divmod(sizes.bulk_sequences, each)
                counts = [each] * whole + [rest] * (rest > 0)
                batches = [random_batch(shape, [tokens] * n) for n in counts]
                for batch in batches[:1] + batches[-1:]:
                    for _ in range(2):
                        vectors(engine, batch, Lane.BULK)
                done, seconds = _submitters(engine, batches, sizes.submitters, bench.until(6.0))
                floor = bench.floor_ms(shape, [tokens] * each) / 1e3 / each
                rate = done * sizes.bulk_sequences / seconds
                bench.add(
                    "C",
                    f"{sizes.submitters} x {sizes.bulk_sequences} x {tokens}",
                    shape.name,
                    "emb/s",
                    done,
                    rate=rate,
                    extra={"ceiling_emb_s": 1 / floor, "of_ceiling": rate * floor},
                )


def _submitters(
    engine: Engine, batches: list[RaggedBatch], count: int, end: float
) -> tuple[int, float]:
    """(requests answered, seconds): each submitter sends its next request after the last."""
    answered: list[int] = []

    def submit() -> None:
        while True:
            # Two passes on the card in all, as a worker has: two submitters at a time.
            with turns:
                pipelined(engine, batches, depth=1)
            answered.append(1)
            if time.monotonic() >= end:
                return

    turns = threading.Semaphore(2)
    threads = [threading.Thread(target=submit, name=f"submitter-{i}") for i in range(count)]
    begin = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(answered), time.perf_counter() - begin
