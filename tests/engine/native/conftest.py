"""Single kernels, compiled for one rung and called with numpy arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from hedgerow_engine.native.compiler import Program, compile_unit, host_features
from hedgerow_engine.native.ir import Function, Unit
from hedgerow_engine.native.rungs import LADDER, Rung, missing_features


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every test with a `rung` runs on each rung that this machine can execute; a module may
    narrow them with RUNGS."""
    if "rung" in metafunc.fixturenames:
        wanted = getattr(metafunc.module, "RUNGS", LADDER)
        rungs = [r for r in wanted if not missing_features(r, host_features())]
        metafunc.parametrize("rung", rungs, ids=[r.name for r in rungs])


class Callee:
    """A kernel with its arguments as arrays and integers; keeps its program alive."""

    def __init__(self, unit: Unit, function: Function, ptrs: int, ints: int) -> None:
        k = unit.kernel("entry", ptrs=ptrs, ints=ints, export=True)
        function(k, k.ptrs, k.ints)
        k.done()
        self.program = Program(compile_unit(unit), ["entry"])
        self._entry = self.program.function("entry", ptrs + ints)

    def __call__(self, *args: Any) -> None:
        self._entry(*(a.ctypes.data if isinstance(a, np.ndarray) else a for a in args))


@pytest.fixture(scope="session")
def callee() -> Callable[..., Callee]:
    """(rung, write(unit) -> Function, ptrs, ints) -> Callee, compiled once per test session."""
    known: dict[Any, Callee] = {}

    def make(rung: Rung, key: Any, write: Callable[[Unit], Function], ptrs: int, ints: int) -> Any:
        if (rung.name, key) not in known:
            unit = Unit(rung)
            known[rung.name, key] = Callee(unit, write(unit), ptrs, ints)
        return known[rung.name, key]

    return make


@pytest.fixture
def tolerance(rung: Rung) -> float:
    """Relative error of one rounding, with some room."""
    return 5e-3 if rung.dtype == "bfloat16" else 3e-6


@pytest.fixture(autouse=True)
def private_object_cache(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One cache for the whole test session, away from the user's own."""
    monkeypatch.setenv("HEDGEROW_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "objects"))
    monkeypatch.delenv("HEDGEROW_NATIVE_RUNG", raising=False)


@pytest.fixture(autouse=True, scope="session")
def one_torch_thread() -> None:
    torch.set_num_threads(1)
