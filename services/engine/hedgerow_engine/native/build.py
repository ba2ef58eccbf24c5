"""From a model card to everything an executor runs: rung, geometry, program, packed weights."""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import llvmlite

from hedgerow_engine.models.checks import skip_classifier
from hedgerow_engine.native.cache import ObjectCache, cache_folder, program_key
from hedgerow_engine.native.compiler import (
    Program,
    compile_unit,
    host_features,
    no_executable_memory,
    target_of,
)
from hedgerow_engine.native.families import UnsupportedError, family_of
from hedgerow_engine.native.geometry import Geometry
from hedgerow_engine.native.model import PackedModel
from hedgerow_engine.native.packing import Packer
from hedgerow_engine.native.program import exports, write_program
from hedgerow_engine.native.rungs import BY_NAME, LADDER, Rung, choose_rung, missing_features
from hedgerow_engine.native.selftest import self_test
from hedgerow_engine.native.threads import usable_threads
from hedgerow_engine.weights import Weights
from hedgerow_shared.errors import StartupError
from hedgerow_shared.modelcard import ModelCard

Log = Callable[[str], None]

_OLDEST_LLVMLITE = (0, 50)

_WORD_TABLES = (
    "embeddings.word_embeddings.weight",
    "embeddings.tok_embeddings.weight",
    "embed_tokens.weight",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """What one model needs to run."""

    card: ModelCard
    geometry: Geometry
    rung: Rung
    model: PackedModel
    program: Program
    threads: int


def supported(card: ModelCard, *, dtype: str = "auto", rung: str | None = None) -> str | None:
    """None when this model can run natively on this CPU, else why not. Reads no weights."""
    try:
        chosen = _rung_for(family_of(card).geometry(card, "F32"), dtype, rung)
        return chosen if isinstance(chosen, str) else None
    except (UnsupportedError, StartupError) as reason:
        return str(reason)


def build(
    card: ModelCard,
    weights: Weights,
    *,
    dtype: str = "auto",
    threads: int = 1,
    log: Log,
    rung: str | None = None,
    cache: Path | None = None,
) -> Built:
    """Raises UnsupportedError with the reason, or StartupError for broken weights."""
    family = family_of(card)
    g = family.geometry(card, word_table_dtype(weights))
    chosen = _rung_for(g, dtype, rung)
    if isinstance(chosen, str):
        raise UnsupportedError(chosen)
    tensors = family.tensors(card, weights, g)
    threads = usable_threads(threads, log)
    program = load_program(g, chosen, threads=threads, log=log, cache=cache or cache_folder())
    packer = Packer(program.function, chosen)
    model = PackedModel(tensors, chosen, packer, max_positions=card.max_seq_len)
    failure = self_test(program, model, tensors, chosen, threads=threads)
    if failure:
        raise UnsupportedError(failure)
    skip_classifier(card, weights)
    weights.finish()
    return Built(card=card, geometry=g, rung=chosen, model=model, program=program, threads=threads)


def load_program(g: Geometry, rung: Rung, *, threads: int, log: Log, cache: Path) -> Program:
    """The machine code of a geometry, from the cache or compiled now."""
    names = exports(threads)
    key = program_key(_llvmlite_version(), target_of(rung), rung, g, threads)
    objects = ObjectCache(cache, log)
    cached = objects.get(key)
    if cached is not None:
        try:
            return Program(cached, names)
        except RuntimeError as error:
            log(f"native object cache: {key} does not link ({error}); compiling again")
    start = time.perf_counter()
    try:
        compiled = compile_unit(write_program(g, rung, threads=threads))
        program = Program(compiled, names)
    except RuntimeError as error:
        # LLVM's complaint about our text or its object: an llvmlite nobody tried yet.
        first_line = str(error).strip().splitlines()[:1]
        raise UnsupportedError(f"llvmlite {_llvmlite_version()}: {first_line}") from error
    log(f"native: compiled for {rung.name} in {time.perf_counter() - start:.2f} s")
    objects.put(key, compiled)
    return program


def word_table_dtype(weights: Weights) -> str:
    """The file's dtype of the word embeddings, which the program reads as they lie."""
    for name in _WORD_TABLES:
        raw = weights.optional(name)
        if raw is not None:
            if raw.dtype not in ("F32", "F16", "BF16"):
                raise UnsupportedError(f"word embeddings of dtype {raw.dtype}")
            return raw.dtype
    return "F32"


def _rung_for(g: Geometry, dtype: str, rung: str | None) -> Rung | str:
    """The best rung of this CPU, or why it does not take this model. Where no torch could serve
    it instead, a lower one that does: an older CPU would have taken that, too."""
    best = _rung(dtype, rung)
    problem = best if isinstance(best, str) else g.problem(best)
    if problem is None or isinstance(best, str) or importlib.util.find_spec("torch"):
        return problem or best
    for lower in () if _forced(rung) else LADDER[LADDER.index(best) + 1 :]:
        runs = dtype in ("auto", lower.dtype) and not missing_features(lower, host_features())
        if runs and g.problem(lower) is None:
            return lower
    return problem


def _forced(rung: str | None) -> str | None:
    """$HEDGEROW_NATIVE_RUNG forces a rung: a lower one, or one nobody has run yet."""
    return rung or os.environ.get("HEDGEROW_NATIVE_RUNG") or None


def _rung(dtype: str, rung: str | None) -> Rung | str:
    """The rung to try first, or why there is none. Raises StartupError where none is called as
    the forced one: whoever sets it must not get another executor instead."""
    problem = _llvmlite_problem() or no_executable_memory()
    if problem:
        return problem
    forced = _forced(rung)
    if forced is not None and forced not in BY_NAME:
        raise StartupError(
            f"HEDGEROW_NATIVE_RUNG={forced}: no native rung is called that; use one of "
            f"{', '.join(BY_NAME)}, or unset it"
        )
    return choose_rung(host_features(), dtype, forced)


def _llvmlite_version() -> str:
    return str(llvmlite.__version__)


def _llvmlite_problem() -> str | None:
    """Older ones have another LLVM, whose bfloat16 instructions have other types."""
    numbers = tuple(int(part) for part in _llvmlite_version().split(".")[:2] if part.isdigit())
    if numbers >= _OLDEST_LLVMLITE:
        return None
    wanted = ".".join(map(str, _OLDEST_LLVMLITE))
    return f"llvmlite {_llvmlite_version()} is too old; pip install 'llvmlite>={wanted}'"
