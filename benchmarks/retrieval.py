"""`python -m benchmarks retrieval --corpus FOLDER`: does serving change what a search finds?

The same weights, the same length cap, the same texts: nDCG@10 of Hedgerow over HTTP beside
sentence-transformers' own `encode`. FOLDER holds corpus.jsonl, queries.jsonl and qrels.tsv.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks import machine, server
from benchmarks.harness import Vectors, cosines, say
from benchmarks.machine import ROOT
from benchmarks.rows import Row
from benchmarks.suites.context import LENGTHS, MINILM, folders
from benchmarks.target import Target
from benchmarks.text import Document, read_corpus

SUITE = "retrieval"
DEPTH = 10
PER_REQUEST, CALLERS = 32, 4
QUICK_DOCUMENTS, QUICK_QUERIES = 200, 40

Judgements = Mapping[str, Mapping[str, float]]


def ndcg(ranked: Sequence[str], judged: Mapping[str, float], depth: int = DEPTH) -> float:
    """Normalised discounted cumulative gain with gain = judgement (as trec_eval counts it).

    0 for a query none of whose judgements is above zero.
    """
    gains = [max(judged.get(doc, 0.0), 0.0) for doc in ranked[:depth]]
    ideal = sorted((g for g in judged.values() if g > 0), reverse=True)[:depth]
    discounts = 1 / np.log2(np.arange(2, depth + 2))
    best = float(np.dot(ideal, discounts[: len(ideal)]))
    return float(np.dot(gains, discounts[: len(gains)])) / best if best else 0.0


def mean_ndcg(
    queries: Vectors,
    documents: Vectors,
    query_ids: Sequence[str],
    document_ids: Sequence[str],
    qrels: Judgements,
) -> tuple[float, int]:
    """Mean over queries that have a relevant document, and how many those are.

    Documents are ranked by cosine; equal cosines keep the order of the corpus.
    """
    scores = _unit(queries) @ _unit(documents).T
    order: list[list[int]] = np.argsort(-scores, axis=1, kind="stable")[:, :DEPTH].tolist()
    found: list[float] = []
    for row, query in enumerate(query_ids):
        judged = qrels.get(query, {})
        if any(g > 0 for g in judged.values()):
            found.append(ndcg([document_ids[i] for i in order[row]], judged))
    return float(np.mean(found)) if found else 0.0, len(found)


def read_qrels(file: Path) -> dict[str, dict[str, float]]:
    """qrels.tsv (query-id, corpus-id, score; with a header line) by query."""
    found: dict[str, dict[str, float]] = {}
    for line in file.read_text("utf-8").splitlines()[1:]:
        query, document, score = line.split("\t")[:3]
        found.setdefault(query, {})[document] = float(score)
    return found


def run(corpus: Path, *, quick: bool) -> list[Row]:
    """Two rows of nDCG@10 and the difference. A quick run takes the first documents only."""
    documents, queries = read_corpus(corpus / "corpus.jsonl"), read_corpus(corpus / "queries.jsonl")
    if quick:
        documents, queries = documents[:QUICK_DOCUMENTS], queries[:QUICK_QUERIES]
    qrels = read_qrels(corpus / "qrels.tsv")
    # The gateway refuses an empty text; a blank one has the same token ids as an empty one.
    texts = [d.text or " " for d in (*queries, *documents)]
    where = folders(long=False)
    theirs, their_s = _sentence_transformers(where[MINILM], texts)
    with server.hedgerow(where, lengths={MINILM: LENGTHS[MINILM]}) as target:
        ours, our_s = _over_http(target, texts)
    lowest = float(cosines(ours, theirs).min())
    say(f"min cosine over {len(texts)} texts: {lowest:.5f}")
    rows = [
        _row("hedgerow", ours, our_s, queries, documents, qrels, corpus),
        _row("sentence-transformers", theirs, their_s, queries, documents, qrels, corpus),
    ]
    difference = (rows[0].rate or 0.0) - (rows[1].rate or 0.0)
    say(f"nDCG@{DEPTH} difference {difference:+.5f} (0.001 allowed)")
    extra = {**rows[0].extra, "difference": difference, "min cosine": lowest}
    return [replace(rows[0], extra=extra), rows[1]]


def _row(
    engine: str,
    vectors: Vectors,
    seconds: float,
    queries: Sequence[Document],
    documents: Sequence[Document],
    qrels: Judgements,
    corpus: Path,
) -> Row:
    score, judged = mean_ndcg(
        vectors[: len(queries)],
        vectors[len(queries) :],
        [q.id for q in queries],
        [d.id for d in documents],
        qrels,
    )
    return Row(
        suite=SUITE,
        case=f"{corpus.name}: {len(documents)} documents, {judged} queries",
        engine=engine,
        unit=f"nDCG@{DEPTH}",
        samples=judged,
        rate=score,
        model=MINILM,
        extra={"texts/s": round(len(vectors) / seconds)},
        note=f"longest text {LENGTHS[MINILM]} tokens",
        versions=machine.versions("sentence-transformers", "transformers", "torch"),
    )


def _unit(vectors: Vectors) -> Vectors:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def _over_http(target: Target, texts: Sequence[str]) -> tuple[Vectors, float]:
    """Vectors in the order of `texts`, asked for in requests of 32 from four callers."""
    start = time.perf_counter()
    groups = [texts[i : i + PER_REQUEST] for i in range(0, len(texts), PER_REQUEST)]
    with ThreadPoolExecutor(CALLERS) as pool:
        parts = list(pool.map(lambda group: target.embed(MINILM, group), groups))
    seconds = time.perf_counter() - start
    say(f"hedgerow: {len(texts)} texts in {seconds:.1f} s")
    return np.concatenate(parts), seconds


def _sentence_transformers(folder: Path, texts: Sequence[str]) -> tuple[Vectors, float]:
    """Vectors by `SentenceTransformer.encode` in a process of its own, and encode's seconds."""
    say("sentence-transformers encodes the same texts (fp32)")
    with tempfile.TemporaryDirectory() as scratch:
        inputs, out = Path(scratch) / "texts.json", Path(scratch) / "out.npy"
        inputs.write_text(json.dumps(list(texts)), "utf-8")
        command = [sys.executable, "-m", "benchmarks.retrieval", str(folder), str(inputs), str(out)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise RuntimeError(f"sentence-transformers failed: {last}")
        seconds = float(done.stdout.split()[-1])
        say(f"sentence-transformers: {len(texts)} texts in {seconds:.1f} s")
        return np.load(out), seconds


def _main(folder: str, inputs: Path, out: Path) -> None:
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(machine.cores())
    model = SentenceTransformer(folder, device="cpu").float()
    model.max_seq_length = LENGTHS[MINILM]
    texts: list[str] = json.loads(inputs.read_text("utf-8"))
    start = time.perf_counter()
    # encode() strips nothing that matters: a blank text becomes [CLS] [SEP] here and there.
    vectors = model.encode(texts, batch_size=32, show_progress_bar=False)
    print(time.perf_counter() - start)
    np.save(out, np.asarray(vectors, np.float32))


if __name__ == "__main__":
    _main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
