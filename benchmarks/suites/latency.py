"""Suite A, low-latency embeddings: one pre-tokenized input at a time, fully sequential."""

from __future__ import annotations

from benchmarks.harness import sample
from benchmarks.rows import Row, percentiles
from benchmarks.suites.context import Bench, model_for
from benchmarks.target import good

SUITE = "A latency"
CASES = ((128, 300, 10.0), (512, 150, 12.0), (4096, 20, 45.0))
"""(tokens, samples, seconds at most) of a full run."""


def run(bench: Bench, lengths: tuple[int, ...] = (128, 512, 4096)) -> list[Row]:
    return [case(bench, n, samples, s) for n, samples, s in CASES if n in lengths]


def case(bench: Bench, length: int, samples: int, seconds: float) -> Row:
    """p50..max of requests with one input of `length` tokens, on one connection."""
    limits, model = bench.limits(samples, seconds), model_for(length)
    inputs = bench.inputs(length, min(limits.samples + limits.warm_up, 64), seed=length)
    requests = [bench.target.request(model, [one]) for one in inputs]
    with bench.target.client() as client:
        times = sample(lambda i: good(client.exchange(requests[i % len(requests)])), limits)
    return bench.row(SUITE, f"1x{length}", "ms", len(times), model=model, **percentiles(times))
