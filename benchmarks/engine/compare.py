"""`python -m benchmarks engine`: our executors beside other engines, in one run, in turns.

Hosts drift by 10-20 % within minutes, so engines are timed in turns on the same tokens, and
what counts are the ratios of a round. Each engine keeps its own process.
"""

from __future__ import annotations

import contextlib
import statistics
import tempfile
import time
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import machine, models
from benchmarks.engine import figures, lineup
from benchmarks.engine.cases import Case, cases_of, ragged
from benchmarks.engine.contender import Contender, ContenderError
from benchmarks.engine.figures import Run
from benchmarks.harness import cosines, say
from benchmarks.models import Shape
from benchmarks.rows import Row, percentiles
from benchmarks.text import Pool, standard_text

CHECKED = {models.MINILM.name: 64, models.BERT_BASE.name: 16, models.QWEN3.name: 6}
"""Sequences whose vectors are compared with the oracle's, by model."""
PASS_AT_MOST_S = 30.0


def run(*, shapes: Sequence[Shape], quick: bool, minutes: float) -> list[Row]:
    """Rows of every model, case, gap and engine. `minutes` bounds the timing, not the loading."""
    pool = Pool(models.minilm_folder() / "tokenizer.json", standard_text())
    left_s, rows = minutes * 60, []
    for number, shape in enumerate(shapes):
        share_s = left_s * (0.5 if number < len(shapes) - 1 else 1.0)
        found, spent_s = _model(shape, pool, quick=quick, seconds=share_s)
        rows, left_s = rows + found, left_s - spent_s
    return rows


def _model(shape: Shape, pool: Pool, *, quick: bool, seconds: float) -> tuple[list[Row], float]:
    """Rows of one model, and the seconds its timing took."""
    chosen, absent = lineup.lineup(shape, models.folder(shape))
    dtype = "bfloat16" if machine.has_bf16() else "float32"
    with contextlib.ExitStack() as stack, tempfile.TemporaryDirectory() as scratch:
        contenders = lineup.opened(chosen, absent)
        for contender in contenders:
            stack.callback(contender.close)
        floor = _floor_gflops(shape, dtype)
        run = Run(shape, contenders, floor, quick)
        say(f"{shape.name}: {len(contenders)} engines, floor {floor:.0f} GFLOP/s {dtype}")
        _check_vectors(run, pool, Path(scratch))
        started_s = time.monotonic()
        run.deadline_s = started_s + seconds
        rows = [figures.floor(run, case, dtype) for case in cases_of(shape, pool, quick=quick)]
        for case in cases_of(shape, pool, quick=quick):
            rows += _case(run, case, case.save(Path(scratch)))
        if shape is models.MINILM:
            rows += _first_calls(run, pool, Path(scratch))
        spent_s = time.monotonic() - started_s
    rows += [figures.missing(shape, "all", name, why) for name, why in absent.items()]
    return rows, spent_s


def _floor_gflops(shape: Shape, dtype: str) -> float:
    """Best sustained rate over the model's own matrices at 512 rows; 0 without torch."""
    head = shape.head_dim or shape.hidden // shape.heads
    fused = (shape.heads + 2 * (shape.kv_heads or shape.heads)) * head
    sides = ((shape.hidden, fused), (shape.hidden, shape.ffn), (shape.ffn, shape.hidden))
    floor = lineup.floor(dtype)
    try:
        floor.open()
        shapes = [(512, inner, columns) for inner, columns in sides] * 3
        return float(floor.call(do="gemm", shapes=shapes, seconds=0.2)["gflops"])
    except ContenderError as error:
        say(str(error))
        return 0.0
    finally:
        floor.close()


def _check_vectors(run: Run, pool: Pool, scratch: Path) -> None:
    """Smallest cosine of each engine to transformers fp32 over ragged sequences."""
    count = 8 if run.quick else CHECKED[run.shape.name]
    file = Case(name="check", sequences=ragged(pool, count)).save(scratch)
    vectors: dict[str, Any] = {}
    for contender in run.contenders:
        out = scratch / "vectors.npy"
        try:
            contender.call(do="embed", case=file, out=str(out))
            vectors[contender.name] = np.load(out)
        except ContenderError as error:
            say(str(error))
    oracle = vectors.get(lineup.ORACLE)
    if oracle is not None:
        for name, got in vectors.items():
            run.cosine[name] = float(cosines(got, oracle).min())
            say(f"{run.shape.name}: {name}: min cosine {run.cosine[name]:.5f}")


def _case(run: Run, case: Case, file: str) -> list[Row]:
    rows: list[Row] = []
    for gap_ms in case.gaps_ms:
        timed: dict[str, list[list[float]]] = {}
        skipped: dict[str, str] = {}
        for contender in _turns(run, case, skipped):
            with _excused(contender, skipped):
                times = contender.call(do="time", case=file, **_ask(case, gap_ms))["times_ms"]
                timed.setdefault(contender.name, []).append(times)
                run.ms_per_token[contender.name] = min(times) / sum(case.lengths)
        if case.pair and not gap_ms:
            _pair(run, case, file, timed)
        name = case.name + (f", every {gap_ms:.0f} ms" if gap_ms else "")
        rows += [figures.line(run, case, name, engine, timed) for engine in timed]
        rows += [figures.missing(run.shape, name, engine, why) for engine, why in skipped.items()]
    return rows


def _ask(case: Case, gap_ms: float) -> dict[str, Any]:
    # A gap of 20 ms leaves room for few samples in half a second.
    seconds = case.seconds * (1 if gap_ms < 5 else 2)
    return {
        "seconds": seconds,
        "samples": 2000,
        "at_least": case.at_least,
        "warm_up": case.warm_up,
        "gap_ms": gap_ms,
    }


def _turns(run: Run, case: Case, skipped: dict[str, str]) -> Iterator[Contender]:
    """Every contender once a round, back and forth; slow or late ones are told why not.

    The first round of a cheap case runs even when the time is up: seconds for a whole line.
    """
    for number in range(case.rounds):
        for contender in run.contenders if number % 2 == 0 else reversed(run.contenders):
            if contender.name in skipped:
                continue
            expected_s = run.ms_per_token.get(contender.name, 0.0) * sum(case.lengths) / 1e3
            if expected_s > PASS_AT_MOST_S:
                skipped[contender.name] = f"not run: one pass takes about {expected_s:.0f} s"
                continue
            expected_s *= 1 + case.warm_up
            is_late = time.monotonic() + expected_s > run.deadline_s
            if not is_late or (case.is_cheap and number == 0):
                yield contender
            elif number == 0:
                skipped[contender.name] = "not run: the time for this model was up"


@contextlib.contextmanager
def _excused(contender: Contender, skipped: dict[str, str]) -> Generator[None, None, None]:
    try:
        yield
    except ContenderError as error:
        skipped[contender.name] = f"failed: {error}"
        say(str(error))


def _pair(run: Run, case: Case, file: str, timed: dict[str, list[list[float]]]) -> None:
    """The same work on two one-thread engines at once: how `hedgerow up` runs on two cores."""
    single = next((c for c in run.contenders if c.name == lineup.our_name("native", 1)), None)
    if single is None or machine.cores() < 2 or time.monotonic() > run.deadline_s:
        return
    order = sorted(range(len(case.sequences)), key=lambda i: case.lengths[i])
    halves = [[case.sequences[i] for i in order[part::2]] for part in (0, 1)]
    where = Path(file).parent
    files = [
        Case(name=f"{case.name} half {i}", sequences=half).save(where)
        for i, half in enumerate(halves)
    ]
    pair = [Contender(f"worker {i}", single.ask, single.python) for i in (0, 1)]
    try:
        for one in pair:
            one.open()
        times = [[_both(pair, files)] for _ in range(case.rounds + 1)][1:]
        timed["hedgerow native, 2 workers of 1 thread"] = times
    except ContenderError as error:
        say(str(error))
    finally:
        for one in pair:
            one.close()


def _both(pair: Sequence[Contender], files: Sequence[str]) -> float:
    """Milliseconds until both have done their half."""
    start = time.perf_counter()
    for one, file in zip(pair, files, strict=True):
        one.send(do="time", case=file, seconds=0, samples=1, at_least=1, warm_up=0, gap_ms=0)
    for one in pair:
        one.receive()
    return (time.perf_counter() - start) * 1e3


def _first_calls(run: Run, pool: Pool, scratch: Path) -> list[Row]:
    """A length never seen before against the same length again: is there a price per shape?"""
    lengths = (19, 37, 83, 147, 203, 331, 443)
    file = Case(name="new", sequences=[pool.ids(n, 1, seed=n)[0] for n in lengths]).save(scratch)
    rows: list[Row] = []
    for contender in run.contenders:
        try:
            found = contender.call(do="first", case=file)["rows_ms"]
        except ContenderError as error:
            say(str(error))
            continue
        ratios = [times[0] / statistics.median(times[1:]) for times in found]
        rows.append(
            Row(
                suite="engine",
                case="first call at a new length / the next ones",
                engine=contender.name,
                unit="ratio",
                samples=len(ratios),
                model=run.shape.name,
                dtype=contender.facts.get("dtype", ""),
                note=run.busy,
                **percentiles(ratios),
            )
        )
    return rows
