"""Rows of an answer <-> columns of raw little-endian bytes, for the reply on the wire.

A column holds one array of every good row: equal shapes are stacked, others carry their lengths.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from hedgerow_shared.errors import BadChunkError, HedgerowError, from_wire, to_wire
from hedgerow_shared.ragged import Array, Row

MAX_ROWS = 1 << 17
"""More sequences than fit into a message; a claim beyond it is refused before it costs."""

_DTYPES = {name: np.dtype(name) for name in ("<f4", "<f2", "|i1", "|u1", "<i4")}


_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


def pack_rows(rows: list[Row]) -> tuple[list[dict[str, Any]], list[list[Any]]]:
    """(columns of the good rows, [index, error] of the bad ones)."""
    good: list[tuple[Array, ...]] = []
    bad: list[list[Any]] = []
    for i, row in enumerate(rows):
        if isinstance(row, HedgerowError):
            bad.append([i, to_wire(row)])
        else:
            good.append(row)
    return [_pack_column(column) for column in zip(*good, strict=True)], bad


def unpack_rows(count: Any, columns: Any, bad: Any) -> list[Row]:
    """Undo `pack_rows`. Raises BadChunkError for anything it cannot have made."""
    if type(count) is not int or not 0 <= count <= MAX_ROWS:
        raise BadChunkError(f"'n' must be a number of rows up to {MAX_ROWS}, found {count!r:.40}")
    if not isinstance(columns, list) or not isinstance(bad, list):
        raise BadChunkError("'out' and 'bad' must be lists")
    errors = _unpack_errors(bad, count)
    num_good = count - len(errors)
    if num_good and not columns:
        raise BadChunkError(f"no columns for {num_good} rows")
    arrays = [_unpack_column(column, num_good) for column in columns]
    good = zip(*arrays, strict=True)
    return [errors[i] if i in errors else next(good) for i in range(count)]


def _pack_column(arrays: tuple[Array, ...]) -> dict[str, Any]:
    first = arrays[0]
    dtype = _NAMES.get(first.dtype) or first.dtype.newbyteorder("<").str
    assert dtype in _DTYPES, f"{dtype} is not a type of the wire"
    if len(arrays) == 1 or all(a.shape == first.shape for a in arrays):
        data = first if len(arrays) == 1 else np.stack(arrays)
        return {"t": dtype, "s": list(first.shape), "d": raw(data, dtype)}
    lens = np.array([a.shape[0] for a in arrays], np.int32)
    data = np.concatenate(arrays)
    return {"t": dtype, "s": list(first.shape[1:]), "l": raw(lens, "<i4"), "d": raw(data, dtype)}


def _unpack_errors(bad: list[Any], count: int) -> dict[int, HedgerowError]:
    errors: dict[int, HedgerowError] = {}
    for entry in bad:
        if not isinstance(entry, list) or len(entry) != 2:
            raise BadChunkError("'bad' must hold pairs of index and error")
        index, error = entry
        if type(index) is not int or not 0 <= index < count or index in errors:
            raise BadChunkError(f"'bad' names row {index!r:.40} of {count}, or names it twice")
        errors[index] = from_wire(error)
    return errors


def _unpack_column(column: Any, rows: int) -> list[Array]:
    if not isinstance(column, dict):
        raise BadChunkError("a column must be a map")
    flat = _flat(column)
    shape = _shape(column.get("s"))
    width = math.prod(shape)
    if "l" not in column:
        if not shape or flat.size != rows * width:
            raise BadChunkError(f"{flat.size} numbers for {rows} rows of shape {shape}")
        return list(flat.reshape(rows, *shape))
    lens = _lens(column["l"], rows)
    total = int(lens.sum())
    if width == 0 or flat.size != total * width:
        raise BadChunkError(f"{flat.size} numbers for {total} parts of shape {shape}")
    return np.split(flat.reshape(-1, *shape), np.cumsum(lens)[:-1])


def _flat(column: Mapping[str, Any]) -> Array:
    name, data = column.get("t"), column.get("d")
    dtype = _DTYPES.get(name) if isinstance(name, str) else None
    if dtype is None or not isinstance(data, bytes) or len(data) % dtype.itemsize:
        raise BadChunkError(f"a column must be raw bytes of one of {', '.join(_DTYPES)}")
    return np.frombuffer(data, dtype)


def _shape(value: Any) -> tuple[int, ...]:
    good = isinstance(value, list) and len(value) <= 2
    if not good or any(type(n) is not int or not 0 <= n < 1 << 31 for n in value):
        raise BadChunkError(f"a column of shape {value!r:.40}")
    return tuple(value)


def _lens(data: Any, rows: int) -> Array:
    if not isinstance(data, bytes) or len(data) != 4 * rows:
        raise BadChunkError(f"a column needs {rows} lengths")
    lens = np.frombuffer(data, "<i4").astype(np.int64)
    if rows and lens.min() < 0:
        raise BadChunkError("a length is negative")
    return lens


def raw(array: Array, dtype: str) -> bytes:
    # tobytes copies in C order whatever the strides; astype only where bytes must change.
    wanted = _DTYPES[dtype]
    return array.tobytes() if array.dtype == wanted else array.astype(wanted).tobytes()
