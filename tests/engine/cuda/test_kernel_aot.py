"""Every Triton kernel compiles for Hopper on a machine without a card, and spills nothing."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.kernels,
    pytest.mark.skipif(
        importlib.util.find_spec("triton") is None,
        reason="triton is not installed here (make test-slow installs it)",
    ),
]
SCRIPT = Path(__file__).with_name("aot_cases.py")
ROOT = SCRIPT.parents[3]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path_factory.mktemp("triton"))
    paths = [str(ROOT / "services" / "engine"), str(ROOT / "shared")]
    environment["PYTHONPATH"] = os.pathsep.join([*paths, environment.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, str(SCRIPT)], env=environment, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def test_no_kernel_spills_registers(compiled: dict[str, dict[str, Any]]) -> None:
    assert len(compiled) >= 16
    assert {name: one["spill_bytes"] for name, one in compiled.items() if one["spill_bytes"]} == {}
    assert all(16 <= one["registers"] <= 255 for one in compiled.values())


def test_a_maximum_over_tokens_keeps_what_is_not_a_number(
    compiled: dict[str, dict[str, Any]],
) -> None:
    """The interpreter's maximum always does, so only the machine code tells."""
    maxima = compiled["reduce max, any width"]["maxima"]
    assert maxima and all(name.startswith("max.NaN.") for name in maxima), maxima


def test_the_record_lists_every_kernel_that_is_compiled(
    compiled: dict[str, dict[str, Any]],
) -> None:
    record = (ROOT / "docs/decisions/0104-fused-kernels-and-their-twins.md").read_text("utf-8")
    listed = set(re.findall(r"^\| ([a-z_]+(?: [^|]+?)?) \| \d+ \| \d+ \|", record, re.MULTILINE))
    assert listed == set(compiled)
