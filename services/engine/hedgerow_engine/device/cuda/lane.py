"""One priority of one model: a stream, its static buffers, its staging ring, its graphs.

Two lanes of a model share weights and nothing else, so a query's kernels may run between those
of a bulk pass without touching a buffer of it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from hedgerow_engine import buckets
from hedgerow_engine.device.cuda.forward import Blocks, StreamForward
from hedgerow_engine.device.cuda.outputs import PER_TOKEN, Block, CudaPending, Format, Sent
from hedgerow_engine.device.cuda.probe import Parts, probe
from hedgerow_engine.device.cuda.staging import Sections, Slot, synthetic, write
from hedgerow_engine.graphs import GraphRunner, Key
from hedgerow_engine.staging import Layout, lay_out
from hedgerow_shared.ragged import RaggedBatch, Task

TOKENS = 8192
SLOTS = 64
_TRIES = 3
_POOLED = frozenset({"pooled", "unit", "int8", "bits"})


class CudaLane:
    """Launches the batches of one priority. Only the engine thread calls it."""

    def __init__(self, parts: Parts, *, urgent: bool, max_tokens: int) -> None:
        self._parts = parts
        self.stream = parts.runtime.stream(urgent=urgent)
        self.out_of_memory = 0
        self._build(TOKENS, SLOTS, max_tokens)

    def launch(self, batch: RaggedBatch, heads: tuple[Task, ...]) -> CudaPending:
        """Stage, plan, copy in, run, copy out, mark: all queued, nothing waited for."""
        include_prompt = self._parts.card.pooling.include_prompt
        layout = lay_out(batch, include_prompt=include_prompt, sort=False)
        slots = buckets.cuda_slots(layout.num_seqs, layout.num_rows)
        key = Key(buckets.cuda_tokens(batch.num_tokens), slots, heads)
        slot = self._stage(batch, layout, key)
        self.graphs.run(key, batch.num_tokens)
        if self.forward.planned_late:
            slot.copied.record()
        return self._send(layout, key)

    def warm(self, key: Key) -> bool:
        """Run a shape once on made-up tokens, then record it. False if it cannot be."""
        parts = self._parts
        sequences = synthetic(key, parts.card.max_seq_len)
        if sequences is None or key.tokens > self.graphs.max_tokens or key in self.graphs:
            return False
        batch = RaggedBatch.of(sequences)
        slot = self._stage(batch, lay_out(batch, include_prompt=True, sort=False), key)
        self.graphs.warm(key)
        slot.copied.record()
        self.stream.synchronize()
        recorded = self.graphs.record(key)
        self.stream.synchronize()
        return recorded

    def time(self, tokens: int, heads: tuple[Task, ...]) -> tuple[float, float]:
        """(seconds the host needs to launch a pass, seconds the card needs to run it).

        The least of a few tries each: what an interrupt adds must not be kept for good.
        """
        sequences = -(-tokens // self._parts.card.max_seq_len)
        key = Key(tokens, buckets.cuda_slots(sequences, sequences), heads)
        if not self.warm(key):
            return 0.0, 0.0
        launched = ran = float("inf")
        for _ in range(_TRIES):
            begin = time.perf_counter()
            self.forward.eager(key)
            launched = min(launched, time.perf_counter() - begin)
            self.stream.synchronize()
            begin = time.perf_counter()
            self.graphs.run(key, tokens)
            self.stream.synchronize()
            ran = min(ran, time.perf_counter() - begin)
        return launched, ran

    def limit_graphs(self, max_tokens: int) -> None:
        """Set the inflection point: passes above it run without a graph."""
        self.graphs.max_tokens = max_tokens

    def stats(self) -> Mapping[str, float]:
        return {
            **self.graphs.counters.flat(),
            "graphs": len(self.graphs),
            "staging_waits": self.ring.waits,
            "out_of_memory": self.out_of_memory,
        }

    def close(self) -> None:
        """Let every graph go, once what is queued has run."""
        self.graphs.clear()
        self.stream.synchronize()
        self.forward.graveyard.sweep()

    def _stage(self, batch: RaggedBatch, layout: Layout, key: Key) -> Slot:
        self._fit(key)
        self._blocks_of(key.heads)
        self.forward.graveyard.sweep()
        self.forward.planned_late = False
        attention = self.forward.attention(key)
        slot = self.ring.take()
        write(slot, batch, layout, key)
        at = Sections.of(key.tokens, key.slots)
        attention.lengths.host_cu_seqlens = slot.buffer[at.cu_seqlens]
        attention.lengths.tables = slot.tables
        with self.stream.current():
            attention.plan(layout)
        self.stream.copy_in(self._static.buffer[: at.size], slot.buffer[: at.size])
        slot.copied.record()
        return slot

    def _send(self, layout: Layout, key: Key) -> CudaPending:
        rows, tokens = self._blocks_of(key.heads)
        sent: list[Sent] = []
        if rows is not None:
            counts = {n: layout.num_rows if n in _POOLED else layout.num_seqs for n in rows.names}
            sent.append(Sent(rows, rows.send(self.stream, max(counts.values())), counts))
        if tokens is not None:
            counts = dict.fromkeys(tokens.names, layout.num_tokens)
            sent.append(Sent(tokens, tokens.send(self.stream, layout.num_tokens), counts))
        event = self.stream.event()
        event.record()
        return CudaPending(event, sent, self._parts.model.first_token)

    def _fit(self, key: Key) -> None:
        """Replace static buffers that are too small: every graph has their addresses baked in."""
        if key.tokens <= self._tokens and key.slots <= self._slots:
            return
        self.close()
        earlier = self.graphs
        self._build(max(key.tokens, self._tokens), max(key.slots, self._slots), earlier.max_tokens)
        self.graphs.counters, self.graphs.hits = earlier.counters, earlier.hits

    def _build(self, tokens: int, slots: int, max_tokens: int) -> None:
        parts, settings = self._parts, self._parts.settings
        places = Sections.of(tokens, slots).size
        self._tokens, self._slots = tokens, slots
        self._blocks: dict[tuple[Task, ...], Blocks] = {}
        self._static = parts.static(places)
        self.ring = parts.ring(self.stream, slots=settings.depth + 1, places=places)
        self.forward = StreamForward(
            parts, self.stream, self._static, self.ring, self._blocks_of, self._make_room
        )
        self.graphs = GraphRunner[None](
            self.forward,
            limit=settings.graph_cache,
            max_tokens=max_tokens,
            smallest=buckets.SMALLEST_CUDA,
            has_room=self._has_room,
        )

    def _blocks_of(self, heads: tuple[Task, ...]) -> Blocks:
        """The static rows that answers of these heads go to; made before their first pass."""
        blocks = self._blocks.get(heads)
        if blocks is None:
            parts, samples = self._parts, probe(self._parts, self.stream, heads)
            buffers = parts.settings.depth + 2

            def block(names: list[str], capacity: int) -> Block | None:
                if not names:
                    return None
                form = Format.of({n: samples[n] for n in names})
                return Block(parts.runtime, form, capacity=capacity, buffers=buffers)

            blocks = self._blocks[heads] = Blocks(
                block([n for n in samples if n not in PER_TOKEN], self._slots),
                block([n for n in samples if n in PER_TOKEN], self._tokens),
            )
        return blocks

    def _has_room(self) -> bool:
        reserve = self._parts.settings.graph_reserve_mb << 20
        return self._parts.runtime.free_bytes() > reserve

    def _make_room(self) -> None:
        """Out of memory in an eager pass: the graphs go, and what torch caches."""
        self.out_of_memory += 1
        self.close()
        self._parts.runtime.trim()
