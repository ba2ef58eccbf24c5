"""A model's weights by the names its code uses, whatever prefix or split its file uses.

No torch here: a tensor is a raw view (see `weightfile`). Every mistake of a checkpoint is a
StartupError of one line that names the file, the tensor and the remedy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from hedgerow_engine.ptfile import read_pt
from hedgerow_engine.weightfile import RawTensor, read_safetensors
from hedgerow_engine.weightfolder import weight_files
from hedgerow_shared.errors import StartupError

# What checkpoints put before the names of the base model: classes with a head prefix it with
# their attribute, and some exports add their own.
PREFIXES = (
    "",
    "model.",
    "bert.",
    "roberta.",
    "deberta.",
    "mpnet.",
    "distilbert.",
    "new.",
    "gte.",
    "nomic_bert.",
    "language_model.",
    "model.language_model.",
    "0.auto_model.",
    "encoder.model.",
)
_OLD_NAMES = ((".gamma", ".weight"), (".beta", ".bias"))
_FLOATS = ("F64", "F32", "F16", "BF16")
# Constants that older code saved beside the weights; whoever needs them computes them.
_CONSTANTS = ("rotary_emb.inv_freq", "embeddings.position_ids", "embeddings.token_type_ids")


class Weights:
    """The tensors of one folder, taken one by one and counted, so that none is forgotten."""

    def __init__(self, folder: Path, tensors: dict[str, RawTensor]) -> None:
        self.folder = folder
        self._tensors: dict[str, RawTensor] = {}
        self._taken: set[str] = set()
        for name, raw in tensors.items():
            if self._tensors.setdefault(_modern(name), raw) is not raw:
                raise StartupError(
                    f"{raw.file}: has {_modern(name)} under its old name too (.gamma, .beta); "
                    "which of the two counts is not said, so remove one"
                )

    @classmethod
    def open(cls, folder: Path) -> Weights:
        """Map every safetensors file of `folder`. Raises StartupError, see the module."""
        tensors: dict[str, RawTensor] = {}
        for file in weight_files(folder):
            for name, raw in read_safetensors(file).items():
                if name in tensors:
                    other = tensors[name].file.name
                    raise StartupError(
                        f"{file}: tensor {name} is in {other} too; remove one of the two files"
                    )
                tensors[name] = raw
        return cls(folder, tensors)

    @classmethod
    def open_linear(cls, file: Path) -> Weights:
        """Read a file that holds one linear, under the names `linear.weight` and `linear.bias`:
        safetensors, or the `.pt` of a head."""
        tensors = read_pt(file) if file.suffix == ".pt" else read_safetensors(file)
        return cls(
            file.parent, {"linear." + n.removeprefix("linear."): t for n, t in tensors.items()}
        )

    def again(self) -> Weights:
        """The same tensors, none taken yet: for a second executor after one that gave up."""
        return Weights(self.folder, dict(self._tensors))

    @property
    def num_bytes(self) -> int:
        return sum(raw.data.nbytes for raw in self._tensors.values())

    @property
    def tensors(self) -> Iterable[RawTensor]:
        """Every tensor of the folder, in the order of their names."""
        return (self._tensors[name] for name in sorted(self._tensors))

    def find(self, name: str) -> str | None:
        """The name a tensor has in the file, trying each known prefix; None if absent."""
        return next((p + name for p in PREFIXES if p + name in self._tensors), None)

    def has(self, name: str) -> bool:
        return self.find(name) is not None

    def take(self, name: str, shape: Sequence[int] | None = None) -> RawTensor:
        """The tensor `name`, which must exist and, where given, have `shape`."""
        found = self.find(name)
        if found is None:
            raise StartupError(
                f"{self.folder}: tensor {name} is missing from its *.safetensors; the config names "
                "another architecture or the download is incomplete"
            )
        raw = self._tensors[found]
        if raw.dtype not in _FLOATS:
            raise StartupError(
                f"{raw.file}: tensor {found} is {raw.dtype}, but weights of integers are not read; "
                f"take the model's weights as one of {', '.join(_FLOATS)}"
            )
        if shape is not None and raw.shape != tuple(shape):
            raise StartupError(
                f"{raw.file}: tensor {found} is {list(raw.shape)}, but the config asks for "
                f"{list(shape)}; {self.folder / 'config.json'} and the weights are of two models"
            )
        self._taken.add(found)
        return raw

    def optional(self, name: str, shape: Sequence[int] | None = None) -> RawTensor | None:
        """Like `take`, but None where the checkpoint has no such tensor."""
        return self.take(name, shape) if self.has(name) else None

    def fused(self, names: Sequence[str], shapes: Sequence[Sequence[int]]) -> RawTensor:
        """Several tensors joined along their first axis (query, key, value -> one matrix)."""
        return joined([self.take(n, s) for n, s in zip(names, shapes, strict=True)])

    def skip(self, *names: str) -> None:
        """Mark tensors that exist only for training or for another task; `x.*` takes all of x."""
        for name in names:
            stem = name.removesuffix("*")
            for known in self._tensors:
                bare = next((known[len(p) :] for p in PREFIXES if known == p + stem), None)
                inside = name.endswith("*") and any(known.startswith(p + stem) for p in PREFIXES)
                if bare is not None or inside:
                    self._taken.add(known)

    def finish(self) -> None:
        """Raise StartupError if a tensor was never asked for: it would change the vectors."""
        left = sorted(n for n in set(self._tensors) - self._taken if not n.endswith(_CONSTANTS))
        if left:
            raw = self._tensors[left[0]]
            more = f" and {len(left) - 1} more" if len(left) > 1 else ""
            raise StartupError(
                f"{raw.file}: unexpected tensor {left[0]}{more}: this architecture does not use "
                "it, so the vectors would not be this model's; check `architectures` in config.json"
            )


def joined(raws: Sequence[RawTensor]) -> RawTensor:
    """Tensors after each other along the first axis: a copy, as float32 where dtypes differ."""
    first, name = raws[0], "+".join(r.name for r in raws)
    if any(r.dtype != first.dtype for r in raws):
        return RawTensor(name, "F32", np.concatenate([r.float32() for r in raws]), first.file)
    return RawTensor(name, first.dtype, np.concatenate([r.data for r in raws]), first.file)


def split(raw: RawTensor, parts: int) -> list[RawTensor]:
    """A fused tensor cut into equal parts along its first axis: views."""
    pieces = np.split(raw.data, parts)
    return [RawTensor(f"{raw.name}[{i}]", raw.dtype, p, raw.file) for i, p in enumerate(pieces)]


def _modern(name: str) -> str:
    for old, new in _OLD_NAMES:
        if name.endswith(old):
            return name.removesuffix(old) + new
    return name
