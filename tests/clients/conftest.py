"""Clients other people wrote, against real processes with a fake engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gateway.stack import Stack, running_stack


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, minilm_folder: Path) -> Iterator[Stack]:
    """MiniLM's tokenizer and dimensions under the alias `minilm`; vectors by the fake engine."""
    with running_stack(tmp_path_factory.mktemp("served"), f"minilm={minilm_folder}") as stack:
        stack.worker("--fake-ms", "4", "--fake-floor-ms", "0.2")
        stack.gateway()
        stack.wait()
        yield stack
