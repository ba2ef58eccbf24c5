"""modules.json: the steps of a sentence-transformers folder, in an order that can be served."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
# Whose modules these names are: a repository's own code may call anything a Pooling.
_PACKAGES = ("sentence_transformers", "pylate", "st_quantize")


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
        kind = _kind(entry)
        where = folder / _path(entry)
        config: Mapping[str, Any] = {}
        if kind != "transformer":
            optional = kind in _NEEDS_NO_FILES
            config = JsonObject.read(where / "config.json", optional=optional).values
        modules.append(Module(kind, where, config))
    return tuple(modules)


def trunk_of(folder: Path, modules: Sequence[Module]) -> Path:
    """Where config.json, weights and tokenizer lie: older folders keep them in 0_Transformer."""
    return next((m.folder for m in modules if m.kind == "transformer"), folder)


def on_tokens(modules: Sequence[Module]) -> bool:
    """True for late interaction: no Pooling, but a Dense or a mask that works on tokens."""
    kinds = {m.kind for m in modules}
    if "pooling" in kinds:
        return False
    named = any(m.config.get("module_input_name") == "token_embeddings" for m in modules)
    return named or bool(kinds & {"dense", "token_mask"})


def ends_with_normalize(modules: Sequence[Module]) -> bool:
    """True when the last step that changes a vector is a Normalize; a mask only leaves some out."""
    kinds = [m.kind for m in modules if m.kind != "token_mask"]
    return bool(kinds) and kinds[-1] == "normalize"


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
    wanted = "sentence_embedding" if "pooling" in kinds else "token_embeddings"
    for module in modules:
        if module.kind in ("dense", "normalize") and ("pooling" in kinds or on_tokens(modules)):
            _check_input(module, wanted)


def check_scorer(folder: Path, modules: Sequence[Module], *, scores: bool) -> None:
    """Refuse what stands beside a scorer: its scores would go through it, and here they do not.

    scores: the model scores, by a LogitScore or by a classifier of its own
    """
    kinds = [m.kind for m in modules]
    if not scores:
        return
    file = folder / "modules.json"
    allowed = ["transformer", "logit_score"] if "logit_score" in kinds else ["transformer"]
    if kinds and kinds != allowed:
        odd = next((k for k in kinds if k not in allowed), "a second " + kinds[-1])
        raise StartupError(
            f"{file}: the model scores, and {odd} among its modules is not supported; there may be "
            f"{' and '.join(allowed)} alone"
        )
    for module in modules:
        if module.json.maybe_text("module_input_name") not in (None, "causal_logits"):
            raise module.json.wrong("module_input_name", "causal_logits")


def _kind(entry: JsonObject) -> ModuleKind:
    name = entry.maybe_text("type") or ""
    kind = _MODULE_KINDS.get(name.rsplit(".", 1)[-1])
    if kind is None or name.partition(".")[0] not in _PACKAGES:
        raise StartupError(
            f"{entry.file}: module type {name!r} is not supported "
            f"(supported: {', '.join(_MODULE_KINDS)} of {', '.join(_PACKAGES)})"
        )
    return kind


def _path(entry: JsonObject) -> Path:
    text = entry.maybe_text("path") or ""
    path = Path(text)
    if not text.isprintable():
        raise entry.wrong("path", "the name of a folder")
    if path.is_absolute() or ".." in path.parts:
        raise StartupError(f"{entry.file}: path {text!r} leads out of the model's folder")
    return path


def _check_input(module: Module, wanted: str) -> None:
    """After a Pooling a module must work on its row, without one on tokens: sentence-transformers
    lets it go elsewhere."""
    where = "after a Pooling" if wanted == "sentence_embedding" else "without a Pooling"
    for key in ("module_input_name", "module_output_name"):
        if module.json.maybe_text(key) not in (None, wanted):
            raise module.json.wrong(key, f"{wanted} {where}")
