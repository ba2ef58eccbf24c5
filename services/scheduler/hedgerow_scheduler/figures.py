"""Numbers a worker keeps about itself."""

from __future__ import annotations

from collections import Counter, deque
from typing import Any

import numpy as np

_WINDOW = 1024
_SMOOTHING = 0.1
_FIRST_GUESS_TOKENS_PER_S = 10_000.0
MIN_RETRY_S, MAX_RETRY_S = 0.05, 30.0


class Figures:
    """Counters since start, and the last 1,024 waiting and computing times in ms."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._queue_ms: deque[float] = deque(maxlen=_WINDOW)
        self._compute_ms: deque[float] = deque(maxlen=_WINDOW)
        self._tokens_per_s = 0.0

    def batch(self, num_tokens: int, num_seqs: int, compute_s: float) -> None:
        """One batch that ran."""
        self.counts["batches"] += 1
        self.counts["tokens"] += num_tokens
        self.counts["sequences"] += num_seqs
        rate = num_tokens / max(compute_s, 1e-6)
        old = self._tokens_per_s or rate
        self._tokens_per_s = old + _SMOOTHING * (rate - old)

    def chunk(self, queue_ms: float, compute_ms: float) -> None:
        """One chunk that was answered with rows."""
        self.counts["chunks"] += 1
        self._queue_ms.append(queue_ms)
        self._compute_ms.append(compute_ms)

    def retry_after_s(self, backlog_tokens: int) -> float:
        """How long the backlog takes at the present rate: when it is worth to ask again."""
        rate = self._tokens_per_s or _FIRST_GUESS_TOKENS_PER_S
        return min(max(backlog_tokens / rate, MIN_RETRY_S), MAX_RETRY_S)

    def snapshot(self) -> dict[str, Any]:
        """Flat numbers by name."""
        return {
            **self.counts,
            "tokens_per_s": round(self._tokens_per_s),
            **_percentiles("queue_ms", self._queue_ms),
            **_percentiles("compute_ms", self._compute_ms),
        }


def _percentiles(name: str, values: deque[float]) -> dict[str, float]:
    p50, p99 = np.percentile(values, (50, 99)).tolist() if values else (0.0, 0.0)
    return {f"{name}_p50": round(p50, 3), f"{name}_p99": round(p99, 3)}
