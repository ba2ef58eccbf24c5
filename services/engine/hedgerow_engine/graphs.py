"""When to run a shape eagerly, when to record it, when to replay the recording.

The first hit of a shape runs eagerly (it compiles kernels and sizes buffers), the second is
recorded, later ones are replayed: the cost of recording is spread over the life of a worker.
Knows no device: `Forward` runs and records, `Graph` replays.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Generic, NamedTuple, Protocol, TypeVar

from hedgerow_engine.buckets import too_padded
from hedgerow_shared.ragged import Task

T = TypeVar("T", covariant=True)
U = TypeVar("U")
_ATTEMPTS = 2


class Key(NamedTuple):
    """A recorded shape: padded tokens, places for rows, and the outputs that are computed."""

    tokens: int
    slots: int
    heads: tuple[Task, ...] = ("embed",)


class CaptureError(Exception):
    """A shape could not be recorded (out of memory, an unrecordable call); eager still works."""


class Graph(Protocol[T]):
    """A recording that reads the static inputs and answers with the static outputs."""

    def replay(self) -> T: ...

    def reset(self) -> None:
        """Give its memory back. It is not replayed again, but a replay may still be in flight:
        a device that answers later waits for that one's event first."""
        ...


class Forward(Protocol[T]):
    """The model at one padded shape, over inputs that were staged before."""

    def eager(self, key: Key) -> T: ...

    def capture(self, key: Key) -> tuple[Graph[T], T]:
        """Record the shape and answer the staged inputs too. May raise CaptureError."""
        ...


@dataclass(slots=True)
class GraphCounters:
    """What happened to passes, since the start of the worker.

    refused: too much padding, above the inflection point, or no memory for one more graph
    warmed: recorded while idle, for a shape that an earlier worker saw often
    """

    eager: int = 0
    captured: int = 0
    replayed: int = 0
    evicted: int = 0
    refused: int = 0
    capture_failed: int = 0
    warmed: int = 0
    capture_ms: float = 0.0

    def flat(self) -> dict[str, float]:
        return {f"graph_{f.name}": getattr(self, f.name) for f in fields(self)}


class GraphRunner(Generic[U]):
    """Chooses eager, capture or replay for each pass. One thread calls it.

    limit: graphs kept before the least recently used one goes; 0 = never record
    max_tokens: the inflection point: above it a pass hides its launches without a graph
    smallest: padding up to this bucket is never too much (the rows share one tile anyway)
    has_room: asked before a recording; False lets the least recently used graph go first
    """

    def __init__(
        self,
        forward: Forward[U],
        *,
        limit: int,
        max_tokens: int,
        smallest: int = 0,
        has_room: Callable[[], bool] | None = None,
    ) -> None:
        self._forward = forward
        self._limit = limit
        self._smallest = smallest
        self._has_room = has_room
        self._graphs: OrderedDict[Key, Graph[U]] = OrderedDict()
        self._seen: OrderedDict[Key, None] = OrderedDict()
        self._failures: dict[Key, int] = {}
        self.max_tokens = max_tokens
        self.hits: dict[Key, int] = {}
        self.counters = GraphCounters()

    def __len__(self) -> int:
        return len(self._graphs)

    def __contains__(self, key: Key) -> bool:
        return key in self._graphs

    def run(self, key: Key, num_tokens: int) -> U:
        """Answer a pass of `num_tokens` real tokens staged at the shape `key`."""
        self._count_hit(key)
        graph = self._graphs.get(key)
        if graph is not None and not self._too_padded(key, num_tokens):
            self._graphs.move_to_end(key)
            self.counters.replayed += 1
            return graph.replay()
        if not self._may_capture(key, num_tokens):
            self.counters.eager += 1
            return self._forward.eager(key)
        return self._capture(key)

    def warm(self, key: Key) -> None:
        """Run the staged inputs once, as if the shape had been hit before."""
        self._forward.eager(key)
        self._note(key)

    def record(self, key: Key) -> bool:
        """Record a shape that was warmed just now, ahead of its traffic. False: it may not be."""
        if key in self._graphs or key.tokens > self.max_tokens or not self._make_room():
            return False
        self._capture(key)
        self.counters.warmed += key in self._graphs
        return key in self._graphs

    def clear(self) -> None:
        """Forget every recording and every hit: after running out of memory, shapes that were
        recorded at their very next hit would fill it again at once."""
        for graph in self._graphs.values():
            graph.reset()
        self._graphs.clear()
        self._seen.clear()
        self._failures.clear()

    def _may_capture(self, key: Key, num_tokens: int) -> bool:
        if self._too_padded(key, num_tokens) or key.tokens > self.max_tokens:
            self.counters.refused += 1
            return False
        if self._limit <= 0 or self._failures.get(key, 0) >= _ATTEMPTS:
            return False
        return self._note(key) and self._make_room()

    def _too_padded(self, key: Key, num_tokens: int) -> bool:
        return key.tokens > self._smallest and too_padded(num_tokens, key.tokens)

    def _make_room(self) -> bool:
        """Let the oldest graph go when memory is short. One at a time: what it gives back is seen
        only after its last replay, so asking again at once would let them all go."""
        if self._has_room is None or self._has_room():
            return True
        if self._graphs:
            self._evict()
        if self._has_room():
            return True
        self.counters.refused += 1
        return False

    def _count_hit(self, key: Key) -> None:
        self.hits[key] = self.hits.get(key, 0) + 1
        if len(self.hits) > 64 * max(1, self._limit):
            coldest = min(self.hits, key=lambda k: self.hits[k])
            del self.hits[coldest]

    def _note(self, key: Key) -> bool:
        """Remember a hit; True if there was one before."""
        before = key in self._seen
        self._seen[key] = None
        self._seen.move_to_end(key)
        if len(self._seen) > 16 * max(1, self._limit):
            self._seen.popitem(last=False)
        return before

    def _capture(self, key: Key) -> U:
        started = time.perf_counter()
        try:
            graph, answer = self._forward.capture(key)
        except CaptureError:
            self._failures[key] = self._failures.get(key, 0) + 1
            self.counters.capture_failed += 1
            self.counters.eager += 1
            return self._forward.eager(key)
        self.counters.captured += 1
        self.counters.capture_ms += (time.perf_counter() - started) * 1e3
        self._graphs[key] = graph
        if len(self._graphs) > self._limit:
            self._evict()
        return answer

    def _evict(self) -> None:
        _, oldest = self._graphs.popitem(last=False)
        oldest.reset()
        self.counters.evicted += 1
        # Memory came free: shapes that failed for lack of it may try again.
        self._failures.clear()
