"""Which files of a model folder hold its weights, and why a folder has none. Opens no weights."""

from __future__ import annotations

import os
from pathlib import Path

from hedgerow_shared.errors import StartupError
from hedgerow_shared.jsonfile import JsonObject

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_ADAPTER = "adapter_config.json"


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a folder: the single one, else what its index names, as
    transformers looks for them; else all there are.

    Raises StartupError for what is named but is no file, where there is nothing at all, and where
    an adapter lies beside them.
    """
    if _is_there(folder / _ADAPTER):
        raise StartupError(
            f"{folder / _ADAPTER}: an adapter (LoRA) would be ignored; merge it into "
            f"{_SINGLE} (peft: merge_and_unload) and take the folder of the merged model"
        )
    single = folder / _SINGLE
    if _is_there(folder / _INDEX) and not single.is_file():
        return _indexed(folder / _INDEX)
    if _is_there(single):
        return [_file(single)]
    files = [_file(file) for file in sorted(folder.glob("*.safetensors"))]
    if not files:
        raise StartupError(_no_weights(folder))
    return files


def _indexed(index: Path) -> list[Path]:
    """The files that an index names; they lie beside it or below."""
    names = JsonObject.read(_file(index)).mapping("weight_map").values()
    if not names or not all(isinstance(name, str) and name.isprintable() for name in names):
        raise StartupError(f"{index}: weight_map names no files; download it again")
    files: list[Path] = []
    for name in sorted(set(names)):
        path = Path(name)
        if path.is_absolute() or ".." in path.parts:
            raise StartupError(f"{index}: file {name!r} leads out of the model's folder")
        file = index.parent / path
        if not _is_there(file):
            raise StartupError(f"{file}: missing, though {index.name} names it; download it again")
        files.append(_file(file))
    return files


def _is_there(path: Path) -> bool:
    """True for a link to nothing too: someone meant a file to be there."""
    return os.path.lexists(path)


def _file(path: Path) -> Path:
    """The path, which must be a file or a link to one."""
    if path.is_file():
        return path
    if path.is_dir():
        raise StartupError(f"{path}: a folder, not a file; give the folder that holds the weights")
    if path.is_symlink():
        raise StartupError(f"{path}: a link to {path.readlink()}, which is not there; download it")
    raise StartupError(f"{path}: not a plain file; download it again")


def _no_weights(folder: Path) -> str:
    pickles = sorted(p.name for p in folder.glob("*.bin"))
    if pickles:
        return (
            f"{folder / pickles[0]}: a pickle may run code when it is opened, so .bin is refused; "
            "convert it to model.safetensors"
        )
    return f"{folder}: no *.safetensors here; give the folder that holds the weights"
