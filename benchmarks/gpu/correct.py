"""Sections that ask whether answers are right: parity, graphs, poison, races."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from benchmarks.gpu.bench import Bench, attention_of, random_batch, vectors
from hedgerow_engine.attention.choose import BACKENDS, BackendName
from hedgerow_engine.device.cuda.device import OLDEST_FP8_ARCH
from hedgerow_engine.engine import Engine
from hedgerow_shared.ragged import Lane, RaggedBatch

LENGTHS = (1, 5, 17, 40, 128, 300, 512)
PLANNED: tuple[BackendName, ...] = ("flashinfer_fa3", "flashinfer_fa2")
WITHIN = 0.999  # the divergence allowed between engines: a tenth of a per cent of cosine


def parity(bench: Bench) -> None:
    """Every backend in bf16 against SDPA in float32 on the same weights; eager, then replayed."""
    for shape in bench.shapes:
        seqlens = [n for n in LENGTHS if n <= shape.max_tokens]
        batch = random_batch(shape, seqlens)
        with bench.engine(shape, dtype="float32", attention="sdpa") as engine:
            right = vectors(engine, batch)
        for name in BACKENDS:
            if name not in bench.installed:
                bench.add("parity", shape.name, name, "cosine", 0, note="absent")
                continue
            with bench.engine(shape, only=name) as engine:
                answers = [vectors(engine, batch) for _ in range(3)]
                used, ran = engine.stats(), attention_of(engine)
            cosine = float((answers[0] * right).sum(1).min())
            equal = np.array_equal(answers[0], answers[2])
            extra = {
                "replay_equals_eager": str(equal).lower(),
                "replayed": used["graph_replayed"],
            }
            note = _parity_note(name, ran, cosine, equal=equal)
            bench.add(
                "parity",
                shape.name,
                name,
                "cosine",
                len(seqlens),
                rate=cosine,
                extra=extra,
                note=note,
            )


def _parity_note(name: str, ran: str, cosine: float, *, equal: bool) -> str:
    """What is wrong with a row, and which kernel it is really about."""
    wrong = [f"below {WITHIN}"] * (cosine < WITHIN)
    wrong += ["a replay differs from the eager pass"] * (not equal)
    notes = [f"FAILED: {' and '.join(wrong)}"] * bool(wrong)
    return "; ".join([*notes, *[f"ran {ran}, not {name}"] * (ran != name)])


def fp8(bench: Bench) -> None:
    """What float8 costs: its cosine against the 16-bit engine, and its time beside it."""
    for shape in bench.shapes:
        if bench.runtime.arch < OLDEST_FP8_ARCH:
            bench.add("float8", shape.name, "hedgerow fp8", "cosine", 0, note="not on this card")
            continue
        batch = random_batch(shape, [min(128, shape.max_tokens)])
        with bench.engine(shape) as engine:
            right = vectors(engine, batch)
        with bench.engine(shape, fp8=True) as engine:
            got = vectors(engine, batch)
        cosine = float((got * right).sum(1).min())
        bench.add("float8", shape.name, "hedgerow fp8", "cosine", 1, rate=cosine)


def race(bench: Bench) -> None:
    """Two batches in flight, other lengths at every step, against one at a time.

    On the shape with heads that FlashInfer has, because its plans are what may be overwritten;
    where it is absent, whatever else is chosen.
    """
    shape = bench.shapes[-1]
    rng = np.random.default_rng(7)
    longest = min(64, shape.max_tokens)
    batches = [
        random_batch(shape, rng.integers(1, longest, rng.integers(1, 8)).tolist(), seed=i)
        for i in range(bench.sizes.race_steps)
    ]
    here = bench.installed & set(PLANNED)
    for name in PLANNED if here else (None, *PLANNED):
        case = f"depth 2, other lengths, {name or 'auto'}"
        if name is not None and name not in bench.installed:
            bench.add("race", case, name, "wrong", 0, note="absent")
            continue
        with bench.engine(shape, only=name) as engine:
            wrong, ran = _overtaken(engine, batches), attention_of(engine)
        notes = [f"FAILED: {wrong} answers differ"] * bool(wrong)
        notes += [f"ran {ran}, not {name}"] * (name not in (None, ran))
        note = "; ".join(notes)
        bench.add("race", case, ran, "wrong", len(batches), rate=wrong, note=note)


def _overtaken(engine: Engine, batches: list[RaggedBatch]) -> int:
    """How many answers change when two batches are in flight."""
    for batch in batches:  # every shape reaches its graph first
        vectors(engine, batch)
    alone = [vectors(engine, batch) for batch in batches]
    flying: deque[Any] = deque()
    together: list[np.ndarray] = []
    for batch in batches:
        if len(flying) == 2:
            together.append(_rows(flying.popleft()))
        flying.append(engine.step(batch, Lane.QUERY))
    together += [_rows(lazy) for lazy in flying]
    return sum(not np.array_equal(a, b) for a, b in zip(alone, together, strict=True))


def _rows(lazy: Any) -> np.ndarray:
    return np.stack([row[0] for row in lazy.result().rows])
