"""Engines and oracles for the engine's tests: the real MiniLM where its package is installed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hedgerow_engine.engine import Engine
from hedgerow_engine.load import EngineHost, EngineSettings, ModelSpec, load_engines

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    torch.set_num_threads(1)


OpenEngine = Callable[..., Engine]


@pytest.fixture
def open_engine() -> Iterator[OpenEngine]:
    """open_engine(folder, dtype="float32", max_seq_len=None, **settings) -> Engine."""
    hosts: list[EngineHost] = []

    def open_one(folder: Path, *, max_seq_len: int | None = None, **settings: Any) -> Engine:
        settings = {"dtype": "float32", "warmup_s": 0.0, "cpu_executor": "packed"} | settings
        spec = ModelSpec(alias="m", folder=folder, max_seq_len=max_seq_len)
        host = load_engines([spec], EngineSettings(**settings), log=lambda line: None)
        hosts.append(host)
        return host.engines["m"]

    yield open_one
    for host in hosts:
        host.close()


def cosines(a: Any, b: Any) -> np.ndarray:
    """Cosine of each pair of rows."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    return (a * b).sum(-1) / (np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1))
