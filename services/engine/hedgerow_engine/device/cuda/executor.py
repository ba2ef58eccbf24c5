"""One model on one card. Satisfies `Executor`, `Prioritised` and `Warming`."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping

from hedgerow_engine import buckets
from hedgerow_engine.device.cuda.hits import HitFile, Hits, hits_folder
from hedgerow_engine.device.cuda.inflection import inflection
from hedgerow_engine.device.cuda.lane import CudaLane
from hedgerow_engine.device.cuda.outputs import CudaPending
from hedgerow_engine.device.cuda.probe import Parts
from hedgerow_engine.device.cuda.runtime import OUT_OF_MEMORY
from hedgerow_engine.graphs import Key
from hedgerow_engine.staging import PAD
from hedgerow_shared.errors import StartupError
from hedgerow_shared.ragged import RaggedBatch, Task

_SAVE_EVERY = 2000
_QUERY_TOKENS = (16, 32, 64)
_AGAIN = 4


class CudaExecutor:
    """Queries and rerank batches run in the urgent lane, bulk in one of its own when asked."""

    def __init__(self, parts: Parts, log: Callable[[str], None], *, numerics: str) -> None:
        self._parts, self._log = parts, log
        self.name = "cuda"
        self.dtype = str(parts.kernels.dtype).removeprefix("torch.")
        self.numerics = numerics
        self.tasks: frozenset[Task] = frozenset(parts.model.heads)
        settings = parts.settings
        self._urgent = CudaLane(parts, urgent=True, max_tokens=settings.graph_max_tokens)
        self._bulk: CudaLane | None = None
        self._file = HitFile(
            hits_folder(settings.graph_hits),
            (parts.card.folder, parts.card.max_seq_len, self.numerics, parts.runtime.name),
        )
        self._earlier, self._point = self._file.load()
        self._to_warm = self._hottest_first()
        self._launches = 0

    def launch(self, batch: RaggedBatch, heads: tuple[Task, ...]) -> CudaPending:
        return self._count(self._urgent.launch(batch, heads))

    def launch_bulk(self, batch: RaggedBatch, heads: tuple[Task, ...]) -> CudaPending:
        """On the low-priority stream, whose buffers are made at the first bulk batch."""
        return self._count(self._lane(bulk=True).launch(batch, heads))

    @property
    def attention(self) -> str:
        """The attention backends in use, for logs and measurements."""
        return self._parts.kernels.names

    def warm(self, seconds: float) -> None:
        """Try the kernels, find the inflection point, record the shapes of short queries.

        Raises StartupError when the card has not the memory for one pass.
        """
        try:
            self._warm(time.monotonic() + seconds, measure=seconds > 0)
        except OUT_OF_MEMORY as error:
            raise StartupError(
                f"{self._parts.card.folder}: {self._parts.runtime.name} ran out of memory in the "
                "first passes; free some, take a smaller model, or use --device cpu"
            ) from error

    def _warm(self, end: float, *, measure: bool) -> None:
        heads = self._first_head()
        first = self._urgent.launch(RaggedBatch.of([[PAD]]), heads)
        first.wait()
        first.release()
        self._limit_graphs(heads, measure=measure)
        for tokens in _QUERY_TOKENS:
            if time.monotonic() < end:
                self._urgent.warm(Key(tokens, buckets.cuda_slots(1, 1), heads))

    def warm_next(self) -> bool:
        """Record the hottest shape that an earlier worker saw and this one did not yet."""
        while self._to_warm:
            key, bulk = self._to_warm.pop(0)
            if self._lane(bulk=bulk).warm(key):
                return True
        return False

    def stats(self) -> Mapping[str, float]:
        """Sums over both lanes; `graph_inflection_tokens` is the point above which eager wins."""
        total = Counter[str](self._urgent.stats())
        if self._bulk is not None:
            total.update(self._bulk.stats())
        return {**total, "graph_inflection_tokens": self._urgent.graphs.max_tokens}

    def close(self) -> None:
        self._save()
        for lane in (self._urgent, self._bulk):
            if lane is not None:
                lane.close()

    def _lane(self, *, bulk: bool) -> CudaLane:
        """The lane of such batches. The one for bulk is made when it is first asked for."""
        if not bulk or not self._parts.settings.priorities:
            return self._urgent
        if self._bulk is None:
            limit = self._urgent.graphs.max_tokens
            self._bulk = CudaLane(self._parts, urgent=False, max_tokens=limit)
        return self._bulk

    def _hottest_first(self) -> list[tuple[Key, bool]]:
        """(key, "was bulk") of what an earlier worker saw and this model offers."""
        seen = [(n, key, False) for key, n in self._earlier.urgent.items()]
        seen += [(n, key, True) for key, n in self._earlier.bulk.items()]
        seen.sort(key=lambda one: -one[0])
        return [(key, bulk) for _, key, bulk in seen if set(key.heads) <= self.tasks]

    def _count(self, pending: CudaPending) -> CudaPending:
        self._launches += 1
        if self._launches % _SAVE_EVERY == 0:
            self._save()
        return pending

    def _first_head(self) -> tuple[Task, ...]:
        return ("embed",) if "embed" in self.tasks else (sorted(self.tasks)[0],)

    def _limit_graphs(self, heads: tuple[Task, ...], *, measure: bool) -> None:
        settings, highest = self._parts.settings, self._parts.settings.graph_max_tokens
        if not self._parts.capturable:
            self._log("graphs off: attention or pooling reads lengths back while it runs")
            self._urgent.limit_graphs(0)
            return
        point = settings.graph_inflection
        if point is not None and point > highest:
            self._log(
                f"--graph-inflection {point} is more than the {highest} tokens that graphs are "
                f"made for: {highest} it is"
            )
        if point is None and self._point is None and measure:
            self._point = inflection(lambda t: self._urgent.time(t, heads), highest=highest)
        point = self._point if point is None else point
        if point is not None:
            self._urgent.limit_graphs(min(point, highest))
        self._log(f"graphs up to {self._urgent.graphs.max_tokens} tokens; above, eager wins")

    def _save(self) -> None:
        """Counts of this worker, and a share of the earlier ones': old habits fade."""
        urgent = _merged(self._earlier.urgent, self._urgent)
        self._file.save(Hits(urgent, _merged(self._earlier.bulk, self._bulk)), self._point)


def _merged(earlier: Mapping[Key, int], lane: CudaLane | None) -> dict[Key, int]:
    hits = Counter[Key]({key: count // _AGAIN for key, count in earlier.items()})
    hits.update({} if lane is None else lane.graphs.hits)
    return {key: count for key, count in hits.items() if count > 0}
