"""Where a model lives: `--model ALIAS=WHERE` -> a local folder.

WHERE is a path, else an importable package that holds a model (found without importing it),
else a Hugging Face hub id.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from hedgerow_shared.errors import StartupError
from hedgerow_shared.jsonfile import read_list

_HUB_PATTERNS = [
    "*.json",
    "*.safetensors",
    "*.txt",
    "*.model",
    "*/config.json",
    "*/*.safetensors",
    "*_linear.pt",
    "README.md",
]
"""README.md: its header says what some models are for, and nothing else does."""


@dataclass(frozen=True, slots=True)
class ModelSource:
    """One `--model` flag, taken apart."""

    alias: str
    where: str


def parse_model_flag(text: str) -> ModelSource:
    """`ALIAS=WHERE`, or WHERE alone (its last part becomes the alias)."""
    alias, eq, where = text.partition("=")
    if not eq:
        alias, where = Path(text).name or text, text
    if not alias or not where:
        raise StartupError(f"--model {text!r}: write ALIAS=PATH_OR_HUB_ID, as in minilm=./model")
    return ModelSource(alias, where)


def parse_max_seq_len(flags: Sequence[str], aliases: Sequence[str]) -> dict[str, int]:
    """`N` (for every model) or `ALIAS=N`, each repeatable; returns tokens by alias.

    Raises StartupError naming the flag that is wrong.
    """
    everywhere: dict[str, int] = {}
    named: dict[str, int] = {}
    for text in flags:
        alias, eq, number = text.rpartition("=")
        if not number.isdecimal() or int(number) < 1:
            raise StartupError(f"--max-seq-len {text}: write N or ALIAS=N, N a positive number")
        if not eq:
            everywhere = dict.fromkeys(aliases, int(number))
        elif alias in aliases:
            named[alias] = int(number)
        else:
            raise StartupError(
                f"--max-seq-len {text}: no --model has the alias {alias!r} "
                f"(there is {', '.join(aliases)})"
            )
    return {**everywhere, **named}


def locate(source: ModelSource) -> Path:
    """Find the folder of a model; download it from the hub if it is nowhere on this machine.

    Raises StartupError with one line that names the remedy.
    """
    path = Path(source.where).expanduser()
    if path.exists():
        return _folder(path, source)
    package = _package_folder(source.where)
    if package is not None:
        return package
    if source.where.count("/") > 1 or source.where.startswith((".", "/", "~")):
        raise StartupError(
            f"--model {source.alias}={source.where}: no such folder; give a path that exists, "
            "an installed package or a hub id such as org/name"
        )
    return _hub_folder(source)


def _folder(path: Path, source: ModelSource) -> Path:
    if path.is_dir() and _is_model(path):
        return path.resolve()
    found = "a file" if path.is_file() else "a folder without config.json"
    raise StartupError(
        f"--model {source.alias}={source.where}: {found}; give the folder that holds "
        "config.json, tokenizer.json and *.safetensors"
    )


def _package_folder(name: str) -> Path | None:
    """The folder of an installed package, or its `model/` child, whichever holds a model."""
    module = name.replace("-", "_")
    if not module.isidentifier():
        return None
    spec = importlib.util.find_spec(module)
    for root in (spec.submodule_search_locations or []) if spec else []:
        for folder in (Path(root), Path(root) / "model"):
            if _is_model(folder):
                return folder
    return None


def _is_model(folder: Path) -> bool:
    """Older folders of sentence-transformers have config.json in 0_Transformer alone."""
    return any((folder / name).is_file() for name in ("config.json", "modules.json"))


def _hub_folder(source: ModelSource) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise StartupError(
            f"--model {source.alias}={source.where}: not a folder or an installed package, and "
            "hub downloads need huggingface-hub: pip install 'hedgerow[worker]' or give a folder"
        ) from None
    try:
        folder = Path(snapshot_download(source.where, allow_patterns=_HUB_PATTERNS))
    except Exception as error:  # noqa: BLE001 - the hub client raises many unrelated types
        reason = str(error).strip().splitlines()[0] if str(error).strip() else ""
        raise StartupError(
            f"--model {source.alias}={source.where}: not a folder or an installed package, and the "
            f"hub did not give it ({type(error).__name__}: {reason[:160]}); check the name and the "
            "network, or give a local folder"
        ) from None
    _check_weights(folder, source)
    return folder


def _check_weights(folder: Path, source: ModelSource) -> None:
    """Name a pickle that the hub has where no safetensors came. Nothing is asked of the hub when
    all weights are here, nor without a network."""
    bare = [
        path for path in _weight_paths(folder) if not any((folder / path).glob("*.safetensors"))
    ]
    if not bare:
        return
    try:
        from huggingface_hub import list_repo_files

        names = sorted(list_repo_files(source.where))
    except Exception:  # noqa: BLE001 - the engine then says what it misses
        return
    for name in names:
        path = PurePosixPath(name)
        if path.parent in bare and path.match("pytorch_model*.bin"):
            raise StartupError(
                f"--model {source.alias}={source.where}: the hub has {name} and no safetensors "
                "beside it; a pickle may run code when it is opened, so .bin is refused: convert "
                "it to model.safetensors and give the folder"
            )


def _weight_paths(folder: Path) -> list[PurePosixPath]:
    """Where a model's weights belong: its Transformer's folder and those of its Dense modules."""
    file = folder / "modules.json"
    entries = [(e.maybe_text("type") or "", e.maybe_text("path") or "") for e in read_list(file)]
    paths = [path for kind, path in entries if kind.endswith(("Transformer", "Dense"))]
    return [PurePosixPath(path) for path in paths or [""]]
