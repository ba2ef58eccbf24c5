"""modules.json: the steps of a sentence-transformers folder, in an order that can be served."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hedgerow_shared.errors import StartupError
from hedgerow_shared.jsonfile import JsonObject, read_list

ModuleKind = Literal[
    "transformer",
    "pooling",
    "dense",
    "normalize",
    "logit_score",
    "quantize",
    "splade",
    "token_mask",
]
_MODULE_KINDS: dict[str, ModuleKind] = {
    "Transformer": "transformer",
    "Pooling": "pooling",
    "Dense": "dense",
    "Normalize": "normalize",
    "LogitScore": "logit_score",
    "FlexibleQuantizer": "quantize",
    "MLMTransformer": "transformer",
    "SpladePooling": "splade",
    "MultiVectorMask": "token_mask",
}
_NEEDS_NO_FILES = {"normalize", "quantize", "splade", "token_mask"}


@dataclass(frozen=True, slots=True)
class Module:
    """One step of modules.json after reading its own config.json (empty where it has none)."""

    kind: ModuleKind
    folder: Path
    config: Mapping[str, Any]

    @property
    def json(self) -> JsonObject:
        """The config with typed getters."""
        return JsonObject(self.folder / "config.json", self.config)


def read_modules(folder: Path) -> tuple[Module, ...]:
    modules: list[Module] = []
    for entry in read_list(folder / "modules.json"):
        type_name = entry.maybe_text("type") or ""
        kind = _MODULE_KINDS.get(type_name.rsplit(".", 1)[-1])
        if kind is None:
            raise StartupError(
                f"{entry.file}: module type {type_name!r} is not supported "
                f"(supported: {', '.join(_MODULE_KINDS)})"
            )
        path = Path(entry.maybe_text("path") or "")
        if path.is_absolute() or ".." in path.parts:
            raise StartupError(f"{entry.file}: path {str(path)!r} leads out of the model's folder")
        where = folder / path
        config: Mapping[str, Any] = {}
        if kind != "transformer":
            optional = kind in _NEEDS_NO_FILES
            config = JsonObject.read(where / "config.json", optional=optional).values
        modules.append(Module(kind, where, config))
    return tuple(modules)


def check_order(folder: Path, modules: tuple[Module, ...]) -> None:
    """Refuse an order whose vectors would not be those of sentence-transformers."""
    file = folder / "modules.json"
    kinds = [m.kind for m in modules]
    if kinds and (kinds[0] != "transformer" or kinds.count("transformer") > 1):
        raise StartupError(f"{file}: a Transformer must be the first module and the only one")
    for kind in ("pooling", "splade"):
        if kind in kinds and kinds.index(kind) != 1:
            before = ", ".join(kinds[1 : kinds.index(kind)])
            raise StartupError(
                f"{file}: {before} stands before the {kind} module, which is not supported; "
                "it must follow the Transformer"
            )
        if kinds.count(kind) > 1 or (kind == "splade" and kind in kinds[:-1]):
            raise StartupError(f"{file}: there is more than one {kind} module, or one after it")
    if "pooling" in kinds:
        for module in modules:
            _check_input(module)


def _check_input(dense: Module) -> None:
    """After a pooling a Dense must work on its row: sentence-transformers lets it go elsewhere."""
    if dense.kind != "dense":
        return
    for key in ("module_input_name", "module_output_name"):
        if dense.json.maybe_text(key) not in (None, "sentence_embedding"):
            raise dense.json.wrong(key, "sentence_embedding after a Pooling")
