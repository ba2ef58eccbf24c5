"""A small `.pt` file of torch.save read without torch, and without running what is in it.

Such a file is a zip: `NAME/data.pkl`, a pickle of names and shapes, and `NAME/data/K`, the bytes
of each storage. A pickle may call anything; here it may only call the few functions by which a
dictionary of tensors is put together, and those are ours. BGE-M3 keeps two heads like this.
"""

from __future__ import annotations

import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from hedgerow_engine.weightfile import RawTensor
from hedgerow_shared.errors import StartupError

_MAX_BYTES = 256 << 20
"""Of all storages together: a head is small, and whole models belong into safetensors."""
_DTYPES: Mapping[str, tuple[str, Any]] = {
    "FloatStorage": ("F32", np.float32),
    "HalfStorage": ("F16", np.float16),
    "BFloat16Storage": ("BF16", np.uint16),
    "DoubleStorage": ("F64", np.float64),
}


@dataclass(frozen=True, slots=True)
class _Storage:
    dtype: str
    numbers: Any


def read_pt(file: Path) -> dict[str, RawTensor]:
    """Name -> tensor of a saved state_dict. Raises StartupError naming the file and what it is."""
    try:
        with zipfile.ZipFile(file) as archive:
            content = _Reader(archive, file).read()
    except StartupError:
        raise
    except Exception as error:  # noqa: BLE001 - a damaged pickle raises whatever it likes
        raise _refused(file, f"{type(error).__name__}: {error}") from None
    if not isinstance(content, dict) or not all(
        isinstance(k, str) and isinstance(v, RawTensor) for k, v in content.items()
    ):
        raise _refused(file, "it holds no dictionary of tensors")
    return {name: RawTensor(name, raw.dtype, raw.data, file) for name, raw in content.items()}


class _Reader:
    """One archive. `find_class` and `persistent_load` decide what its pickle may do."""

    def __init__(self, archive: zipfile.ZipFile, file: Path) -> None:
        self._archive, self._file = archive, file
        pickles = [n for n in archive.namelist() if n.count("/") == 1 and n.endswith("/data.pkl")]
        if len(pickles) != 1:
            raise _refused(file, "it was not written by torch.save")
        self._root = pickles[0].removesuffix("data.pkl")
        self._left = _MAX_BYTES

    def read(self) -> Any:
        reader = self

        class Restricted(pickle.Unpickler):
            def find_class(self, module: str, name: str) -> Any:
                return reader.allowed(module, name)

            def persistent_load(self, pid: Any) -> Any:
                return reader.storage(pid)

        with self._archive.open(f"{self._root}data.pkl") as stream:
            return Restricted(stream).load()

    def allowed(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return self._tensor
        if module == "torch" and name in _DTYPES:
            return name
        raise _refused(self._file, f"its pickle wants to call {module}.{name}")

    def storage(self, pid: Any) -> _Storage:
        """pid: ("storage", type, key, device, count), as torch writes it."""
        _, kind, key, _, count = pid
        dtype, numpy_type = _DTYPES[kind]
        size = int(count) * np.dtype(numpy_type).itemsize
        info = self._archive.getinfo(f"{self._root}data/{key}")
        self._left -= info.file_size
        if info.file_size != size or self._left < 0:
            raise _refused(self._file, f"storage {key} has {info.file_size} bytes, not {size}")
        return _Storage(dtype, np.frombuffer(bytearray(self._archive.read(info)), numpy_type))

    def _tensor(
        self,
        storage: _Storage,
        offset: int,
        shape: tuple[int, ...],
        stride: tuple[int, ...],
        *_: Any,
    ) -> RawTensor:
        steps = tuple(prod(shape[i + 1 :]) for i in range(len(shape)))
        end = offset + prod(shape)
        if offset < 0 or end > storage.numbers.size or any(n < 0 for n in shape):
            raise _refused(self._file, f"a tensor of {list(shape)} lies outside of its storage")
        if tuple(stride) != steps and prod(shape) > 1:
            raise _refused(self._file, f"a tensor of {list(shape)} is not stored in order")
        return RawTensor("", storage.dtype, storage.numbers[offset:end].reshape(shape), self._file)


def _refused(file: Path, why: str) -> StartupError:
    return StartupError(
        f"{file}: not read ({why}); save its tensors as {file.with_suffix('.safetensors').name}, "
        "or remove it"
    )
