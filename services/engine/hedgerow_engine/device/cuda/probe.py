"""One token through a model before it serves: which outputs it has, and whether kernels work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from hedgerow_engine import buckets
from hedgerow_engine.attention.flashinfer import TABLE_BYTES
from hedgerow_engine.device.cuda.attention import MAX_PLANNED, Kernels, KeyAttention
from hedgerow_engine.device.cuda.pooler import CudaPooler
from hedgerow_engine.device.cuda.runtime import Runtime, Stream
from hedgerow_engine.device.cuda.staging import Sections, StagingRing, StaticInputs, write
from hedgerow_engine.graphs import Key
from hedgerow_engine.layers.kernels.base import FusedKernels
from hedgerow_engine.models.base import Model, ModelInputs
from hedgerow_engine.settings import EngineSettings
from hedgerow_engine.staging import PAD, lay_out
from hedgerow_shared.modelcard import ModelCard
from hedgerow_shared.ragged import RaggedBatch, Task

WIDEST_DUMMY = 255


@dataclass(frozen=True, slots=True)
class Parts:
    """One loaded model: what both of its lanes share."""

    card: ModelCard
    model: Model
    runtime: Runtime
    kernels: Kernels
    fused: FusedKernels
    settings: EngineSettings

    @property
    def plan_tables(self) -> int:
        """Plan tables a staging slot needs."""
        return MAX_PLANNED if self.kernels.plans else 0

    @property
    def capturable(self) -> bool:
        """False when something in a pass reads lengths back: plain torch pooling does too."""
        on_card = self.runtime.device.type == "cuda"
        return self.kernels.capturable and not (on_card and self.fused.name == "torch")

    def ring(self, stream: Stream, *, slots: int, places: int) -> StagingRing:
        return StagingRing(
            self.runtime,
            stream,
            slots=slots,
            places=places,
            tables=self.plan_tables,
            table_bytes=TABLE_BYTES,
        )

    def static(self, places: int) -> StaticInputs:
        return StaticInputs(self.runtime, places, tables=self.plan_tables, table_bytes=TABLE_BYTES)

    def inputs(
        self, key: Key, static: StaticInputs, ring: StagingRing
    ) -> tuple[ModelInputs, KeyAttention]:
        """Inputs, attention and pooling of a key over a static buffer."""
        # The dummy sequence is part of the bound: at most 255 tokens, the widest bucket step.
        longest = min(key.tokens, max(self.card.max_seq_len, WIDEST_DUMMY))
        lengths = static.lengths(key, longest, ring.first.buffer)
        lengths.tables = ring.first.tables
        attention = KeyAttention(self.kernels, lengths)
        at, buffer = Sections.of(key.tokens, key.slots), static.buffer
        pooler = CudaPooler(self.fused, lengths, buffer[at.positions])
        inputs = ModelInputs(
            buffer[at.input_ids],
            buffer[at.positions],
            buffer[at.token_types],
            attention,
            pooler,
            key.slots,
        )
        return inputs, attention


def probe(parts: Parts, stream: Stream, heads: tuple[Task, ...]) -> Mapping[str, Tensor]:
    """The outputs of one token, on inputs of its own; waits for the card."""
    key = Key(buckets.SMALLEST_CUDA, buckets.cuda_slots(1, 1), heads)
    places = Sections.of(key.tokens, key.slots).size
    static = parts.static(places)
    ring = parts.ring(stream, slots=1, places=places)
    slot = ring.take()
    batch = RaggedBatch.of([[PAD]])
    layout = lay_out(batch, include_prompt=True, sort=False)
    write(slot, batch, layout, key)
    inputs, _ = parts.inputs(key, static, ring)
    static.buffer.copy_(slot.buffer)
    parts.runtime.settle()
    with stream.current():
        outputs = parts.model.run(inputs, heads)
    parts.runtime.settle()
    return outputs
