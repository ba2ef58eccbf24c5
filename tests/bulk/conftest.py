"""A whole bulk lane for a test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.bulk.bulk_stack import Stack, stacks
from tests.nats_fixture import NatsHandle


@pytest.fixture
def make_stack(
    tmp_path: Path, start_nats: Callable[..., NatsHandle]
) -> Iterator[Callable[..., Stack]]:
    """`make_stack()` on a server of its own, or `make_stack(url)` on another one."""
    with stacks(tmp_path) as make:
        yield lambda url="": make(url or start_nats().url)
