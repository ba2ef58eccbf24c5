"""How a thing is timed: warm up, then sample until enough calls or the time is up."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

T = TypeVar("T")
Vectors = npt.NDArray[np.float32]

COSINE_GATE = 0.999
"""The article's warm-up rule: vectors may diverge by at most 0.1 % in cosine similarity."""

_STARTED = time.monotonic()


@dataclass(frozen=True, slots=True)
class Limits:
    """When a case has been sampled enough: `samples` calls, or `seconds`, whichever is first."""

    samples: int
    seconds: float
    warm_up: int = 5


def say(text: str) -> None:
    """One progress line with the seconds since start, on stderr so that tables stay clean."""
    print(f"[{time.monotonic() - _STARTED:6.1f} s] {text}", file=sys.stderr, flush=True)


def sample(call: Callable[[int], object], limits: Limits, *, gap_s: float = 0.0) -> list[float]:
    """Milliseconds of each `call(i)`, i = 0, 1, 2, ...; warm-up calls come first, untimed.

    At least three calls are timed, however slow. With `gap_s` the caller sleeps before each.
    """
    for i in range(limits.warm_up):
        call(i)
    times: list[float] = []
    end = time.perf_counter() + limits.seconds
    while len(times) < 3 or (len(times) < limits.samples and time.perf_counter() < end):
        if gap_s:
            time.sleep(gap_s)
        start = time.perf_counter()
        call(limits.warm_up + len(times))
        times.append((time.perf_counter() - start) * 1e3)
    return times


def cosines(left: Vectors, right: Vectors) -> npt.NDArray[np.float64]:
    """Cosine of each row of `left` with the same row of `right`: float64 [rows]."""
    a, b = left.astype(np.float64), right.astype(np.float64)
    return (a * b).sum(1) / (np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1))


class WrongVectorsError(Exception):
    """The warm-up found answers that differ from the reference: no timing would mean anything."""


def check_vectors(name: str, got: Vectors, reference: Vectors) -> float:
    """Smallest cosine of answers to their references. Raises WrongVectorsError past 0.1 %.

    Each answer must also be nearer to its own reference than to any other: on a random model
    all vectors resemble each other, and a shuffled answer would pass the cosine alone.
    """
    if got.shape != reference.shape:
        raise WrongVectorsError(f"{name}: shape {got.shape}, the reference has {reference.shape}")
    lowest = float(cosines(got, reference).min())
    if not lowest >= COSINE_GATE:
        raise WrongVectorsError(f"{name}: cosine {lowest:.5f} to the reference is below 0.999")
    unit = [
        v.astype(np.float64) / np.linalg.norm(v, axis=1, keepdims=True) for v in (got, reference)
    ]
    nearest = (unit[0] @ unit[1].T).argmax(1)
    if not np.array_equal(nearest, np.arange(len(got))):
        raise WrongVectorsError(f"{name}: answers are not in the order of the inputs")
    return lowest
