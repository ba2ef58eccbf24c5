"""Thread CPU time of several ways to do the same, taken in turns so that only ratios matter."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

Way = Callable[[str], object]


def hot(ways: Mapping[str, Way], texts: Sequence[str], rounds: int) -> dict[str, list[float]]:
    """Microseconds of each call; every way runs over all texts alone, `rounds` times in turn."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for way in ways.values():
        for text in texts:
            way(text)
    for _ in range(rounds):
        for name, way in ways.items():
            for text in texts:
                found[name].append(_once(way, text))
    return found


def cold(ways: Mapping[str, Way], texts: Sequence[str]) -> dict[str, list[float]]:
    """Microseconds of each call; every text once per way, the ways one after the other, so
    that each finds its tables pushed out by the others."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for text in texts:
        for name, way in ways.items():
            found[name].append(_once(way, text))
    return found


def _once(way: Way, text: str) -> float:
    start = time.thread_time_ns()
    way(text)
    return (time.thread_time_ns() - start) / 1000


def cpu_s(work: Callable[[], object]) -> float:
    """CPU seconds of the whole process, for work that spreads over threads of its own."""
    start = time.process_time()
    work()
    return time.process_time() - start


def wall_s(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
