"""A whole bulk lane for a test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.bulk.bulk_stack import Stack
from tests.nats_fixture import NatsHandle


@pytest.fixture
def make_stack(
    tmp_path: Path, start_nats: Callable[..., NatsHandle]
) -> Iterator[Callable[..., Stack]]:
    """`make_stack()` on a server of its own, or `make_stack(url)` on another one."""
    stacks: list[Stack] = []

    def make(url: str = "") -> Stack:
        folder = tmp_path / f"stack{len(stacks)}"
        folder.mkdir()
        stacks.append(Stack(folder, url or start_nats().url))
        return stacks[-1]

    yield make
    for stack in stacks:
        stack.stop()
