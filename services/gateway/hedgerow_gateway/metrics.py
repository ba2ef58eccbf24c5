"""What a gateway counts, and what it passes on of its workers, for Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from hedgerow_gateway.figures import Counts, Spread
from hedgerow_gateway.fleet import Fleet

_SECONDS = (
    0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.025, 0.05, 0.1, 0.25, 0.5,
    1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
)  # fmt: skip
_TOKENS = tuple(float(2**n) for n in range(2, 16))


class Metrics:
    """Labels are configured aliases and our own codes only, never a caller's text."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counts(
            "hedgerow_requests",
            "Requests answered, by transport, route, model and error code (ok: none)",
            ("transport", "route", "model", "code"),
        )
        self._seconds = Spread(
            "hedgerow_request_seconds",
            "From the first byte of the request read to the answer handed to the socket",
            ("transport", "route", "model"),
            _SECONDS,
        )
        self._stages = Spread(
            "hedgerow_stage_seconds",
            "Parts of a request: tokenize, bus, and of its slowest chunk queue and forward",
            ("stage",),
            _SECONDS,
        )
        self._tokens = Counts("hedgerow_tokens", "Tokens sent to workers", ("model",))
        self._sizes = Spread("hedgerow_request_tokens", "Tokens of a request", ("model",), _TOKENS)
        self._cut = Counts("hedgerow_truncated_inputs", "Inputs cut to fit", ("model",))
        for collector in (
            self._requests, self._seconds, self._stages, self._tokens, self._sizes, self._cut,
        ):  # fmt: skip
            self.registry.register(collector)

    def request(self, transport: str, route: str, model: str, code: str, seconds: float) -> None:
        self._requests.add((transport, route, model, code))
        self._seconds.add((transport, route, model), seconds)

    def stage(self, name: str, seconds: float) -> None:
        self._stages.add((name,), seconds)

    def tokens(self, model: str, count: int, truncated: int) -> None:
        self._tokens.add((model,), count)
        self._sizes.add((model,), count)
        if truncated:
            self._cut.add((model,), truncated)

    def text(self) -> bytes:
        return generate_latest(self.registry)

    def watch(self, fleet: Fleet, own: Callable[[], Mapping[str, float]]) -> None:
        """Export the fleet's own figures, and `own` gauges of this gateway by name."""
        self.registry.register(_FleetFigures(fleet))
        self.registry.register(_OwnFigures(own))


class _OwnFigures(Collector):
    def __init__(self, own: Callable[[], Mapping[str, float]]) -> None:
        self._own = own

    def collect(self) -> Iterable[Metric]:
        for name, value in self._own().items():
            yield GaugeMetricFamily(f"hedgerow_gateway_{name}", f"{name} of this gateway", value)


class _FleetFigures(Collector):
    """Each worker's answer to $SRV.STATS, with a `worker` label.

    Flat numbers become hedgerow_worker_*, those of a lane hedgerow_lane_*, those of an engine
    hedgerow_engine_*; text is left out.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def collect(self) -> Iterable[Metric]:
        found: dict[str, GaugeMetricFamily] = {}
        for worker in self._fleet.workers.values():
            _add(found, "hedgerow_worker", {"worker": worker.id}, worker.stats)
            for alias, model in _maps(worker.stats.get("models")):
                labels = {"worker": worker.id, "model": alias}
                _add(found, "hedgerow_engine", labels, _map(model.get("engine")))
                for lane, numbers in _maps(model.get("lanes")):
                    _add(found, "hedgerow_lane", {**labels, "lane": lane}, numbers)
        return found.values()


def _add(
    found: dict[str, GaugeMetricFamily],
    prefix: str,
    labels: Mapping[str, str],
    numbers: Mapping[str, Any],
) -> None:
    for key, value in numbers.items():
        name = f"{prefix}_{key}"
        if isinstance(value, bool) or not isinstance(value, int | float) or not key.isidentifier():
            continue
        family = found.get(name)
        if family is None:
            text = f"{key} as the worker reports it"
            family = found[name] = GaugeMetricFamily(name, text, labels=list(labels))
        family.add_metric(list(labels.values()), float(value))


def _map(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _maps(value: Any) -> Iterable[tuple[str, Mapping[str, Any]]]:
    return [(key, _map(inner)) for key, inner in _map(value).items()]
