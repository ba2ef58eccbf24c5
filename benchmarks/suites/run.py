"""`python -m benchmarks suites`: start our server, check its vectors, measure, write rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import overhead, plot, server
from benchmarks.clients.http import get
from benchmarks.harness import say
from benchmarks.rows import Row, table, write
from benchmarks.suites import concurrency, latency, reindex, scoring, throughput
from benchmarks.suites.context import LENGTHS, Bench, folders, references, warm_up
from benchmarks.target import Target, good
from benchmarks.text import Pool, read_corpus, standard_text

FILES: Mapping[str, str] = {
    "A": "latency",
    "B": "scoring",
    "C": "throughput",
    "D": "concurrency",
    "E": "reindex",
    "O": "overhead",
}
"""Letter -> results file. O is no suite of the article's: what our system adds to the engine."""


def run(
    *, only: str, quick: bool, corpus: Path | None, price_per_hour: float, workers: int
) -> list[Row]:
    """Run the suites named by letters in `only`; print, write and plot their rows.

    Raises WrongVectorsError when the server's vectors are not the oracle's, NotStartedError
    when `hedgerow up` does not come up.
    """
    where = folders()
    text = "\n\n".join(d.text for d in read_corpus(corpus / "corpus.jsonl")) if corpus else ""
    pool = Pool(where["minilm"] / "tokenizer.json", text or standard_text())
    oracle = references(pool, where, quick=quick)
    flags = ["--workers", str(workers)] if workers else []
    rows: list[Row] = []
    with server.hedgerow(where, lengths=LENGTHS, flags=flags) as target:
        bench = Bench(target=target, pool=pool, quick=quick, dtype=served_dtype(target))
        cosines = warm_up(bench, oracle)
        for letter, suite in _suites(bench, where, price_per_hour, flags).items():
            if letter in only:
                found = suite()
                write(FILES[letter], found, quick=quick)
                rows += found
    print(table(rows))
    say(f"min cosine to sentence-transformers: {', '.join(_named(cosines))}")
    say(f"plot: {plot.draw(rows, quick=quick)}")
    return rows


def _suites(
    bench: Bench, where: Mapping[str, Path], price_per_hour: float, flags: Sequence[str]
) -> dict[str, Callable[[], list[Row]]]:
    """In this order: the quiet ones first, the ones that heat the machine last."""
    return {
        "O": lambda: overhead.run(bench, where["minilm"], flags),
        "A": lambda: latency.run(bench),
        "B": lambda: scoring.run(bench),
        "D": lambda: concurrency.run(bench),
        "E": lambda: reindex.run(bench, price_per_hour),
        "C": lambda: throughput.run(bench),
    }


def served_dtype(target: Target) -> str:
    """dtype the workers say they compute in, as `/v1/models` tells; empty when it does not."""
    with target.client() as client:
        body = good(client.exchange(get(f"{target.host}:{target.port}", "/v1/models")))
    listed: Sequence[dict[str, Any]] = json.loads(body).get("data", [])
    return str(listed[0].get("dtype") or "") if listed else ""


def _named(cosines: Mapping[str, float]) -> list[str]:
    return [f"{alias} {lowest:.5f}" for alias, lowest in cosines.items()]
