"""Runs `kernel_cases.py` in Triton's interpreter: no card, the same arithmetic."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.kernels,
    pytest.mark.skipif(
        importlib.util.find_spec("triton") is None,
        reason="triton is not installed here (make test-slow installs it)",
    ),
]
CASES = Path(__file__).with_name("kernel_cases.py")


def test_every_triton_kernel_agrees_with_its_twin() -> None:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--noconftest",
        str(CASES),
    ]
    done = subprocess.run(
        command,
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        cwd=CASES.parents[3],
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed and int(passed[1]) >= 140 and "skipped" not in done.stdout, done.stdout[-500:]
