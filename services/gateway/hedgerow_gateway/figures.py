"""Counters and histograms that cost less than a microsecond, because only the loop touches them.

prometheus-client's own take a lock per call and walk their buckets in Python; at several per
request that is a visible share of a query. Here a count is an addition, and the library's
families are made when somebody looks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

Labels = tuple[str, ...]


class Counts(Collector):
    """A counter per combination of labels."""

    def __init__(self, name: str, text: str, labels: Sequence[str]) -> None:
        self._name, self._text, self._labels = name, text, labels
        self._values: dict[Labels, float] = {}

    def add(self, labels: Labels, amount: float = 1) -> None:
        self._values[labels] = self._values.get(labels, 0) + amount

    def collect(self) -> Iterable[Metric]:
        family = CounterMetricFamily(self._name, self._text, labels=self._labels)
        for labels, value in self._values.items():
            family.add_metric(labels, value)
        yield family


class Spread(Collector):
    """A histogram per combination of labels."""

    def __init__(
        self, name: str, text: str, labels: Sequence[str], bounds: Sequence[float]
    ) -> None:
        self._name, self._text, self._labels = name, text, labels
        self._bounds = list(bounds)
        self._buckets: dict[Labels, list[int]] = {}
        self._sums: dict[Labels, float] = {}

    def add(self, labels: Labels, value: float) -> None:
        buckets = self._buckets.get(labels)
        if buckets is None:
            buckets = self._buckets[labels] = [0] * (len(self._bounds) + 1)
            self._sums[labels] = 0.0
        buckets[bisect_left(self._bounds, value)] += 1
        self._sums[labels] += value

    def collect(self) -> Iterable[Metric]:
        family = HistogramMetricFamily(self._name, self._text, labels=self._labels)
        names = [*(str(bound) for bound in self._bounds), "+Inf"]
        for labels, buckets in self._buckets.items():
            total, rising = 0, list[tuple[str, float]]()
            for name, count in zip(names, buckets, strict=True):
                total += count
                rising.append((name, total))
            family.add_metric(labels, rising, self._sums[labels])
        yield family
