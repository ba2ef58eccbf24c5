"""Suite B, low-latency scoring: a query and 5, 25 or 50 pre-tokenized documents of 512 tokens."""

from __future__ import annotations

import json
from typing import Any

from benchmarks.harness import sample
from benchmarks.rows import Row, percentiles
from benchmarks.suites.context import MINILM, Bench
from benchmarks.target import good

SUITE = "B scoring"
QUERY_TOKENS, DOCUMENT_TOKENS = 16, 512
CASES = ((5, 100, 12.0), (25, 40, 20.0), (50, 20, 25.0))
"""(documents, samples, seconds at most) of a full run."""


def run(bench: Bench) -> list[Row]:
    return [case(bench, n, samples, seconds) for n, samples, seconds in CASES]


def case(bench: Bench, documents: int, samples: int, seconds: float) -> Row:
    """p50..max of `POST /v1/rerank`; a bi-encoder embeds query and documents and ranks them."""
    limits = bench.limits(samples, seconds, warm_up=3)
    requests = [_request(bench, documents, seed) for seed in range(8)]
    with bench.target.client() as client:

        def call(i: int) -> None:
            answer: dict[str, Any] = json.loads(good(client.exchange(requests[i % len(requests)])))
            assert len(answer["results"]) == documents, "a document was not scored"

        times = sample(call, limits)
    name = f"{documents}x{DOCUMENT_TOKENS}"
    return bench.row(SUITE, name, "ms", len(times), model=MINILM, **percentiles(times))


def _request(bench: Bench, documents: int, seed: int) -> bytes:
    inputs = bench.inputs(DOCUMENT_TOKENS, documents, seed=1000 + seed)
    query = bench.inputs(QUERY_TOKENS, 1, seed=seed)[0]
    plain = [x if isinstance(x, str) else x.tolist() for x in (query, *inputs)]
    body = {"model": bench.target.called(MINILM), "query": plain[0], "documents": plain[1:]}
    return bench.target.post("/v1/rerank", json.dumps(body, separators=(",", ":")).encode())
