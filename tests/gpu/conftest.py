"""The truth of a card. Everything here is skipped, with the reason, where there is none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from benchmarks.gpu.bench import random_batch  # noqa: E402
from benchmarks.gpu.shapes import Shape, write_model  # noqa: E402
from hedgerow_engine.engine import Engine  # noqa: E402
from hedgerow_engine.load import EngineHost, EngineSettings, ModelSpec, load_engines  # noqa: E402

BERT = Shape(
    name="bert",
    layers=3,
    hidden=384,
    heads=12,
    kv_heads=12,
    head_dim=32,
    inner=768,
    vocab=1000,
    max_tokens=512,
    gated=False,
)
QWEN3 = Shape(
    name="qwen3",
    layers=3,
    hidden=512,
    heads=8,
    kv_heads=4,
    head_dim=128,
    inner=1024,
    vocab=1000,
    max_tokens=2048,
    gated=True,
)
SHAPES = {"bert": BERT, "qwen3": QWEN3}
__all__ = ["BERT", "QWEN3", "SHAPES", "random_batch"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    mine = [item for item in items if here in item.path.parents]
    reason = None if torch.cuda.is_available() else "no CUDA device here"
    for item in mine:
        item.add_marker(pytest.mark.gpu)
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def runtime() -> Any:
    from hedgerow_engine.device.cuda.driver import CudaRuntime

    return CudaRuntime(0)


OpenGpu = Callable[..., Engine]


@pytest.fixture
def open_gpu(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenGpu]:
    """open_gpu(shape, **settings) -> Engine on the first card."""
    hosts: list[EngineHost] = []
    root = tmp_path_factory.getbasetemp() / "models"

    def open_one(shape: Shape, **settings: Any) -> Engine:
        plain = {
            "device": "cuda",
            "warmup_s": 0.0,
            "graph_hits": "",
            "graph_inflection": 8192,
        }
        folder = write_model(shape, root / shape.name)
        spec = ModelSpec(alias="m", folder=folder)
        host = load_engines([spec], EngineSettings(**(plain | settings)), log=print)
        hosts.append(host)
        return host.engines["m"]

    yield open_one
    for host in hosts:
        host.close()
