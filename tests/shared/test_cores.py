"""How many cores a process may use."""

from __future__ import annotations

import os

import pytest

from hedgerow_shared.cores import usable_cores


@pytest.mark.parametrize(
    ("text", "cores"),
    [("max 100000", None), ("100000 100000", 1), ("50000 100000", 1), ("nonsense", None)],
)
def test_a_containers_quota_cuts_the_cores(tmp_path, text, cores):
    file = tmp_path / "cpu.max"
    file.write_text(text)
    assert usable_cores(file) == (cores or len(os.sched_getaffinity(0)))
