"""The safetensors format read without torch: names, shapes and raw views into the mapped file.

A file is eight bytes (length of the header, little endian), the header (JSON: name -> dtype,
shape, begin and end of the data), then the data. Nothing is copied here: an array is a view of
the mapping, and bfloat16, which numpy does not have, appears as uint16.
"""

from __future__ import annotations

import json
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hedgerow_shared.errors import StartupError

_NUMPY: Mapping[str, Any] = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "BF16": np.uint16,
    "I64": np.int64,
    "I32": np.int32,
    "I16": np.int16,
    "I8": np.int8,
    "U8": np.uint8,
    "BOOL": np.bool_,
}
_MAX_HEADER_BYTES = 100 << 20
_MAX_AXES = 8


@dataclass(frozen=True, slots=True)
class RawTensor:
    """One tensor as it lies in its file.

    dtype: the file's own word: "F32", "F16", "BF16" (data is then uint16), ...
    data: a view, of the tensor's shape; writing to it changes this process's copy only
    """

    name: str
    dtype: str
    data: npt.NDArray[Any]
    file: Path

    @property
    def shape(self) -> tuple[int, ...]:
        return self.data.shape

    def float32(self) -> npt.NDArray[np.float32]:
        """The numbers as float32: a view where the file holds float32, else a copy."""
        if self.dtype == "BF16":
            return (self.data.astype(np.uint32) << 16).view(np.float32)
        return np.asarray(self.data, np.float32)


def read_safetensors(file: Path) -> dict[str, RawTensor]:
    """Map a file and return its tensors by name.

    Raises StartupError naming the file when it is truncated, not safetensors, or of a type
    that is not read here.
    """
    header, data_start, mapped = _open(file)
    tensors: dict[str, RawTensor] = {}
    places: list[tuple[int, int, str]] = []
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        dtype, shape, begin, end = _entry(file, name, entry)
        if data_start + end > len(mapped):
            raise StartupError(
                f"{file}: truncated: tensor {name} ends at byte {data_start + end}, the file has "
                f"{len(mapped)}; download it again"
            )
        flat = np.frombuffer(
            mapped, np.dtype(_NUMPY[dtype]).newbyteorder("<"), prod(shape), data_start + begin
        )
        tensors[name] = RawTensor(name, dtype, flat.reshape(shape), file)
        places.append((begin, end, name))
    _check_apart(file, places)
    return tensors


def _check_apart(file: Path, places: list[tuple[int, int, str]]) -> None:
    """The format gives every tensor bytes of its own; (begin, end, name) of each."""
    for (_, end, name), (begin, _, other) in pairwise(sorted(places)):
        if begin < end:
            raise StartupError(f"{file}: tensors {name} and {other} share bytes; download it again")


def _open(file: Path) -> tuple[Mapping[str, Any], int, mmap.mmap]:
    try:
        with file.open("rb") as stream:
            # A private mapping: views are writable, so that torch wraps them without a copy.
            mapped = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY)
    except (OSError, ValueError) as error:
        raise StartupError(f"{file}: cannot be read ({error}); download it again") from None
    if len(mapped) < 8:
        raise StartupError(f"{file}: truncated: {len(mapped)} bytes; download it again")
    (length,) = struct.unpack("<Q", mapped[:8])
    if length > min(_MAX_HEADER_BYTES, len(mapped) - 8):
        raise StartupError(
            f"{file}: truncated or not safetensors (header of {length} bytes in a file of "
            f"{len(mapped)}); download it again"
        )
    try:
        header = json.loads(mapped[8 : 8 + length])
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict):
        raise StartupError(f"{file}: not safetensors (the header is not JSON); download it again")
    return header, 8 + length, mapped


def _broken(file: Path, name: str) -> StartupError:
    return StartupError(f"{file}: the header's entry for {name} is broken; download it again")


def _entry(file: Path, name: str, entry: Any) -> tuple[str, tuple[int, ...], int, int]:
    if not name.isprintable():
        raise _broken(file, repr(name))
    try:
        dtype, shape = str(entry["dtype"]), tuple(entry["shape"])
        begin, end = entry["data_offsets"]
    except (KeyError, TypeError, ValueError):
        raise _broken(file, name) from None
    if len(shape) > _MAX_AXES or any(type(n) is not int or n < 0 for n in (*shape, begin, end)):
        raise _broken(file, name)
    if dtype not in _NUMPY:
        raise StartupError(
            f"{file}: tensor {name} is of type {dtype}; supported: {', '.join(_NUMPY)}"
        )
    width = np.dtype(_NUMPY[dtype]).itemsize
    if end - begin != prod(shape) * width:
        raise StartupError(
            f"{file}: tensor {name} is {list(shape)} {dtype} but has {end - begin} bytes"
        )
    return dtype, shape, begin, end
