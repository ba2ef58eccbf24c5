"""What the engine takes and gives: several sequences in one flat array, and one answer for each.

A batch is never padded here. Shapes are in *tokens* and *sequences*: `input_ids` is
[num_tokens], and `cu_seqlens` [num_seqs + 1] says where each sequence begins and ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import pairwise
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from hedgerow_shared.errors import BadChunkError, HedgerowError

TokenIds: TypeAlias = npt.NDArray[np.int32]
Array: TypeAlias = npt.NDArray[Any]

Task = Literal["embed", "score", "classify", "sparse", "multivector"]
DType = Literal["float32", "float16", "int8", "binary"]
TASKS: tuple[Task, ...] = ("embed", "score", "classify", "sparse", "multivector")
DTYPES: tuple[DType, ...] = ("float32", "float16", "int8", "binary")


class Lane(IntEnum):
    """Who goes first: a lower lane always before a higher one (bulk keeps a floor)."""

    QUERY = 0
    RERANK = 1
    BULK = 2


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """What is wanted of a sequence. One pass gives every dtype at every dimension.

    dimensions: () is the model's own width. Each is a prefix of the vector (Matryoshka),
        normalised again after the cut when the vector is normalised.
    normalize: None follows the model's card; True/False overrule it.
    """

    task: Task = "embed"
    dtypes: tuple[DType, ...] = ("float32",)
    dimensions: tuple[int, ...] = ()
    normalize: bool | None = None

    def wanted(self, full: int) -> list[tuple[DType, int]]:
        """(dtype, dimension) of each array in a row of the answer, dtype-major."""
        return [(dtype, dim) for dtype in self.dtypes for dim in (self.dimensions or (full,))]

    def row_bytes(self, full: int) -> int:
        """Bytes of one row of an "embed" answer for a model of width `full`."""
        return sum(width_bytes(dtype, dim) for dtype, dim in self.wanted(full))


def width_bytes(dtype: DType, dimension: int) -> int:
    """Bytes of one vector of `dimension` numbers; binary packs 8 to a byte, high bit first."""
    if dtype == "binary":
        return (dimension + 7) // 8
    return dimension * {"float32": 4, "float16": 2, "int8": 1}[dtype]


EMBED = OutputSpec()


def _none() -> TokenIds:
    return np.zeros(0, np.int32)


@dataclass(frozen=True, slots=True)
class RaggedBatch:
    """Token ids of several sequences, concatenated in the order they arrived.

    input_ids:  int32 [num_tokens]
    cu_seqlens: int32 [num_seqs + 1], cu_seqlens[0] == 0, cu_seqlens[-1] == num_tokens
    outputs:    one OutputSpec per sequence (shared objects, so comparing by `is` is cheap)
    pair_start: int32 [num_seqs] or empty. Offset inside the sequence where the second text
                of a pair begins (token type 1 from there); 0 = not a pair
    prompt_len: int32 [num_seqs] or empty. Leading tokens that belong to the prompt; a model
                whose pooling has `include_prompt: false` leaves them out of the mean
    spans:      int32 [num_spans, 3] or empty: (sequence, start, end), offsets inside the
                sequence. A sequence with spans gives one row per span instead of one row
    """

    input_ids: TokenIds
    cu_seqlens: TokenIds
    outputs: tuple[OutputSpec, ...]
    pair_start: TokenIds = field(default_factory=_none)
    prompt_len: TokenIds = field(default_factory=_none)
    spans: TokenIds = field(default_factory=lambda: np.zeros((0, 3), np.int32))

    @property
    def num_tokens(self) -> int:
        return int(self.input_ids.shape[0])

    @property
    def num_seqs(self) -> int:
        return int(self.cu_seqlens.shape[0]) - 1

    @property
    def seqlens(self) -> TokenIds:
        """int32 [num_seqs]: tokens of each sequence."""
        return self.cu_seqlens[1:] - self.cu_seqlens[:-1]

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence."""
        # Queries come one at a time, with cold caches, where an array operation costs 10 us.
        return self.num_tokens if self.num_seqs == 1 else int(self.seqlens.max())

    def sequence(self, index: int) -> TokenIds:
        """Token ids of one sequence, as a view."""
        return self.input_ids[self.cu_seqlens[index] : self.cu_seqlens[index + 1]]

    @classmethod
    def of(
        cls, sequences: Sequence[Sequence[int] | TokenIds], output: OutputSpec = EMBED
    ) -> RaggedBatch:
        """Build a batch from plain sequences of token ids that all want the same output."""
        arrays = [np.asarray(s, np.int32) for s in sequences]
        cu_seqlens = np.zeros(len(arrays) + 1, np.int32)
        np.cumsum([a.shape[0] for a in arrays], out=cu_seqlens[1:])
        ids = np.concatenate(arrays) if arrays else np.zeros(0, np.int32)
        return cls(ids, cu_seqlens, (output,) * len(arrays))


def check(batch: RaggedBatch) -> None:
    """Raise BadChunkError unless the arrays describe a batch: lengths add up, offsets inside.

    An empty sequence is refused: there is nothing to pool.
    """
    cu, n = batch.cu_seqlens, batch.num_seqs
    if batch.input_ids.ndim != 1 or cu.ndim != 1 or n < 1:
        raise BadChunkError("cu_seqlens needs at least two entries: the chunk holds no sequence")
    # A list, because a differencing of int32 may wrap around and look positive, and because a
    # worker comes here with cold caches, where every numpy call costs 10 us and more.
    bounds: list[int] = cu.tolist()
    if bounds[0] != 0 or bounds[-1] != batch.num_tokens:
        raise BadChunkError(
            f"cu_seqlens runs from {bounds[0]} to {bounds[-1]}, but there are "
            f"{batch.num_tokens} token ids"
        )
    if any(b <= a for a, b in pairwise(bounds)):
        raise BadChunkError("cu_seqlens must rise at every step: a sequence is empty or negative")
    if len(batch.outputs) != n:
        raise BadChunkError(f"{len(batch.outputs)} outputs for {n} sequences")
    for name, offsets in (("pair_start", batch.pair_start), ("prompt_len", batch.prompt_len)):
        if offsets.shape not in ((0,), (n,)):
            raise BadChunkError(f"{name} has {offsets.shape[0]} entries for {n} sequences")
        if offsets.size and (np.any(offsets < 0) or np.any(offsets >= np.diff(cu))):
            raise BadChunkError(f"{name} points outside its sequence")
    _check_spans(batch)


def _check_spans(batch: RaggedBatch) -> None:
    spans = batch.spans
    if spans.ndim != 2 or spans.shape[1] != 3:
        raise BadChunkError("spans must be [num_spans, 3]: sequence, start, end")
    if not spans.shape[0]:
        return
    owner, start, end = spans[:, 0], spans[:, 1], spans[:, 2]
    if np.any(owner < 0) or np.any(owner >= batch.num_seqs):
        raise BadChunkError("a span names a sequence that is not in the chunk")
    if np.any(np.diff(owner) < 0):
        raise BadChunkError("spans must be ordered by sequence")
    if np.any(start < 0) or np.any(end <= start) or np.any(end > batch.seqlens[owner]):
        raise BadChunkError("a span is empty or reaches outside its sequence")


Row: TypeAlias = "tuple[Array, ...] | HedgerowError"
"""The answer to one sequence: its arrays, or the error that befell it alone.

embed:       one array per `OutputSpec.wanted` entry: [dim] (binary: uint8 [ceil(dim / 8)]),
             or [num_spans, dim] for a sequence with spans
score,
classify:    float32 [num_labels] (raw logits)
sparse:      int32 [k] vocabulary ids, float32 [k] weights
multivector: one array per `wanted` entry: [num_tokens, dim]
"""


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What a batch became: one Row per sequence, in the order of the batch."""

    rows: list[Row]
