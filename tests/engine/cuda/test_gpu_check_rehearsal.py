"""`benchmarks/gpu_check.py` walked through without a card, so that no typo wastes one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import benchmarks.gpu_check as gpu_check
from benchmarks.gpu.bench import even
from benchmarks.gpu.shapes import MINILM, QWEN3, Shape

ROOT = Path(__file__).resolve().parents[3]
RESULTS = ROOT / "benchmarks" / "results" / "gpu.json"


def test_every_section_runs_and_nothing_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    before = RESULTS.read_bytes() if RESULTS.is_file() else None
    assert gpu_check.main(["--rehearse", "--seconds", "200"]) == 0
    shown = capsys.readouterr().out
    for section in (*gpu_check.SECTIONS, "ceiling", "inflection"):
        assert f"\n{section} " in shown, section
    assert "FAILED" not in shown and "skipped" not in shown
    assert "no number above was measured on a GPU" in shown
    assert (RESULTS.read_bytes() if RESULTS.is_file() else None) == before


def test_a_section_that_breaks_is_a_row_and_the_others_still_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(bench: object) -> None:
        raise ValueError("no such kernel\nin this build")

    monkeypatch.setattr(gpu_check, "SECTIONS", {**gpu_check.SECTIONS, "race": broken})
    assert gpu_check.main(["--rehearse", "--only", "race,wake-up"]) == 1
    shown = capsys.readouterr().out
    assert "FAILED: ValueError: no such kernel" in shown and "wake-up" in shown


def test_sections_past_the_deadline_are_named_as_skipped(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert gpu_check.main(["--rehearse", "--only", "parity", "--seconds", "0"]) == 0
    assert "skipped: out of time" in capsys.readouterr().out


def test_it_starts_from_a_plain_checkout_and_says_in_one_line_that_there_is_no_card() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a card")
    blocked = (
        "import sys; sys.modules.update({n: None for n in "
        "('msgspec', 'nats', 'aiohttp', 'transformers', 'msgpack', 'orjson', 'llvmlite')}); "
        "import runpy; sys.argv = ['gpu_check.py']; "
        "runpy.run_path('benchmarks/gpu_check.py', run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", blocked], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1 and "--device cpu" in done.stderr


@pytest.mark.parametrize(
    ("shape", "seqlens", "gflop"),
    [
        (MINILM, [128], 2.9),
        (MINILM, [512], 13.3),
        (QWEN3, [128], 116.8),
        (QWEN3, [512], 511.0),
        (QWEN3, [4096], 7456.0),
    ],
    ids=str,
)
def test_floors_follow_the_published_arithmetic(
    shape: Shape, seqlens: list[int], gflop: float
) -> None:
    """GEMM and attention GFLOP of known shapes, worked out by hand; weights bound short ones."""
    assert shape.flops(seqlens) / 1e9 == pytest.approx(gflop, rel=0.02)
    assert shape.floor_s(seqlens, 989e12, 4.8e12) >= 2 * shape.weights / 4.8e12


def test_floor_times_of_short_and_long_passes() -> None:
    assert MINILM.floor_s([128], 989e12, 4.8e12) * 1e6 == pytest.approx(4.4, rel=0.03)
    assert QWEN3.floor_s([512], 989e12, 3.35e12) * 1e6 == pytest.approx(517, rel=0.03)
    assert even(1100, 512) == [512, 512, 76]


def test_a_results_file_can_only_come_from_a_card() -> None:
    if not RESULTS.is_file():
        pytest.skip("never measured on a GPU: there is no results file, as there should not be")
    rows = json.loads(RESULTS.read_text("utf-8"))
    assert rows and all("rehears" not in json.dumps(row) for row in rows)
