"""From pooled float rows to the arrays each sequence asked for: dimensions, dtypes, errors.

All from one pass, on the host: a few microseconds of numpy per batch. int8 is symmetric per
row (its largest number becomes 127), so cosines survive and scales do not; a model that
quantises itself (`quantized`) passes its own integers through. Binary is the sign, eight to a
byte, high bit first.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from hedgerow_engine.executor import Floats, Pass
from hedgerow_shared.errors import BadInputError, HedgerowError, RowError
from hedgerow_shared.ragged import Array, DType, OutputSpec, RaggedBatch, Row, StepOutput

_TINY = 1e-12
_NO_ROWS = np.zeros(0, np.int64)


def finish(
    batch: RaggedBatch, answer: Pass, *, normalize: bool, quantized: bool = False
) -> StepOutput:
    """Cut, normalise, cast and split a pass into one Row per sequence of the batch.

    normalize: what the model's card says; a spec may overrule it. A row that is not finite
    becomes a RowError and touches no other.
    """
    rows: list[Row | None] = [None] * batch.num_seqs
    for spec, members in _by_spec(batch.outputs):
        if spec.task == "embed":
            on = normalize if spec.normalize is None else spec.normalize
            _embed(batch, answer, spec, members, rows, on, quantized)
        elif spec.task in ("score", "classify"):
            assert answer.logits is not None, "the executor was not asked for logits"
            for i in members:
                rows[i] = _checked((answer.logits[i].copy(),))
        elif spec.task == "sparse":
            for i in members:
                rows[i] = _sparse(batch, answer, i)
        else:
            for i in members:
                rows[i] = _multivector(batch, answer, spec, i, normalize)
    return StepOutput([_present(row) for row in rows])


def finite(answer: Pass) -> bool:
    """True when every number of a pass is one; sums see any NaN or infinity."""
    arrays = (
        answer.pooled,
        answer.logits,
        answer.sparse_rows,
        answer.token_weights,
        answer.token_vectors,
    )
    with np.errstate(all="ignore"):
        return all(a is None or bool(np.isfinite(a.sum(dtype=np.float64))) for a in arrays)


def unit_rows(rows: Floats) -> Floats:
    """Rows scaled to length 1; a zero row stays zero."""
    norms = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    return rows / np.maximum(norms, _TINY)[:, None]


def cast(rows: Floats, dtype: DType, *, quantized: bool = False) -> Array:
    """float32 [n, dim] as another type; always a new array."""
    if dtype == "float32":
        return rows.copy()
    if dtype == "float16":
        return rows.astype(np.float16)
    if dtype == "binary":
        # A quantised -0.0 was a negative number: its sign decides, as in the model's own code.
        return np.packbits(~np.signbit(rows) if quantized else rows > 0, axis=1)
    if quantized:
        return np.clip(np.rint(rows), -128, 127).astype(np.int8)
    peak = np.maximum(np.abs(rows).max(axis=1, keepdims=True), _TINY)
    return np.rint(rows * (127.0 / peak)).astype(np.int8)


def _embed(
    batch: RaggedBatch,
    answer: Pass,
    spec: OutputSpec,
    members: Sequence[int],
    rows: list[Row | None],
    normalize: bool,
    quantized: bool,
) -> None:
    assert answer.pooled is not None, "the executor was not asked for embeddings"
    everything = len(members) == batch.num_seqs
    slices = _row_slices(batch)
    index = _NO_ROWS if everything else np.concatenate([_rows_of(slices[i]) for i in members])
    pooled = answer.pooled if everything else answer.pooled[index]
    with np.errstate(all="ignore"):
        finite = np.isfinite(pooled.sum(axis=1))
        arrays: list[Array] = []
        for dtype, dim in spec.wanted(pooled.shape[1]):
            part = pooled[:, :dim]
            if normalize and dim == pooled.shape[1] and answer.unit is not None:
                part = answer.unit if everything else answer.unit[index]
            elif normalize:
                part = unit_rows(part)
            ready = _ready(answer, dtype) if normalize and dim == pooled.shape[1] else None
            if ready is not None:
                arrays.append(ready.copy() if everything else ready[index])
            else:
                # After normalising, a model's own integers are gone: int8 needs its scale again.
                arrays.append(cast(part, dtype, quantized=quantized and not normalize))
    at, all_finite = 0, bool(finite.all())
    for i in members:
        width = slices[i].stop - slices[i].start
        if not all_finite and not finite[at : at + width].all():
            rows[i] = _not_finite()
        elif width == 1 and not _has_spans(batch, i):
            rows[i] = tuple(a[at] for a in arrays)
        else:
            rows[i] = tuple(a[at : at + width] for a in arrays)
        at += width


def _ready(answer: Pass, dtype: DType) -> Array | None:
    """Normalised rows as the device made them, for the types it made."""
    return {"int8": answer.int8, "binary": answer.bits}.get(dtype)


def _sparse(batch: RaggedBatch, answer: Pass, i: int) -> Row:
    if answer.sparse_rows is not None:
        dense = answer.sparse_rows[i]
        ids = np.flatnonzero(dense > 0)
        weights = dense[ids]
        if not np.isfinite(dense).all():
            return _not_finite()
    else:
        assert answer.token_weights is not None, "the executor was not asked for sparse rows"
        own = answer.token_weights[batch.cu_seqlens[i] : batch.cu_seqlens[i + 1]]
        if not np.isfinite(own).all():
            return _not_finite()
        ids, inverse = np.unique(batch.sequence(i), return_inverse=True)
        weights = np.zeros(ids.shape[0], np.float32)
        np.maximum.at(weights, inverse, own)
        ids, weights = ids[weights > 0], weights[weights > 0]
    return (ids.astype(np.int32), weights.astype(np.float32))


def _multivector(
    batch: RaggedBatch, answer: Pass, spec: OutputSpec, i: int, normalize: bool
) -> Row:
    assert answer.token_vectors is not None, "the executor was not asked for token vectors"
    start = batch.cu_seqlens[i] + answer.first_token
    own = answer.token_vectors[start : batch.cu_seqlens[i + 1]]
    if any(not 1 <= d <= own.shape[1] for d in spec.dimensions):
        return BadInputError(f"dimensions must be 1 to {own.shape[1]}")
    if not np.isfinite(own).all():
        return _not_finite()
    row: list[Array] = []
    for dtype, dim in spec.wanted(own.shape[1]):
        part = own[:, :dim]
        row.append(cast(unit_rows(part) if normalize and dim < own.shape[1] else part, dtype))
    return tuple(row)


def _by_spec(outputs: Sequence[OutputSpec]) -> list[tuple[OutputSpec, list[int]]]:
    groups: dict[OutputSpec, list[int]] = {}
    last: OutputSpec | None = None
    members: list[int] = []
    for i, spec in enumerate(outputs):
        if spec is not last:
            last, members = spec, groups.setdefault(spec, [])
        members.append(i)
    return list(groups.items())


def _row_slices(batch: RaggedBatch) -> list[slice]:
    """Rows of `Pass.pooled` that belong to each sequence."""
    if not batch.spans.shape[0]:
        return [slice(i, i + 1) for i in range(batch.num_seqs)]
    counts = np.maximum(np.bincount(batch.spans[:, 0], minlength=batch.num_seqs), 1)
    ends = np.cumsum(counts)
    return [slice(int(e - c), int(e)) for e, c in zip(ends, counts, strict=True)]


def _rows_of(rows: slice) -> npt.NDArray[np.int64]:
    return np.arange(rows.start, rows.stop)


def _has_spans(batch: RaggedBatch, i: int) -> bool:
    return bool(batch.spans.shape[0]) and bool(np.any(batch.spans[:, 0] == i))


def _checked(row: tuple[Array, ...]) -> Row:
    return row if all(np.isfinite(a).all() for a in row) else _not_finite()


def _not_finite() -> HedgerowError:
    return RowError("the model gave numbers that are not finite for this input")


def _present(row: Row | None) -> Row:
    assert row is not None, "a sequence was left without an answer"
    return row
