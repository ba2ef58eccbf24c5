"""`benchmarks/gpu_check.py` walked through without a card, so that no typo wastes one."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import benchmarks.gpu_check as gpu_check
from benchmarks.gpu import correct, speed
from benchmarks.gpu.bench import Bench, even
from benchmarks.gpu.shapes import MINILM, QWEN3, TINY_BERT, Shape
from hedgerow_engine.device.cuda.rehearsal import Rehearsal, RehearsalStream
from hedgerow_engine.settings import EngineSettings

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


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    settings = EngineSettings(device="cuda", warmup_s=0.0, graph_hits="", graph_inflection=8192)
    made = gpu_check._rehearsal(settings, tmp_path)
    made.deadline = time.monotonic() + 60
    return made


def test_every_row_says_which_card_driver_and_versions_it_is_of(bench: Bench) -> None:
    bench.driver = "580.1"
    bench.add("parity", "tiny", "sdpa", "cosine", 1, rate=1.0)
    (row,) = bench.rows
    assert row.machine.startswith("rehearsal on host memory, driver 580.1, ")
    assert row.versions["torch"] == torch.__version__
    assert {"cuda", "python", "hedgerow"} <= set(row.versions)


def test_a_replay_that_differs_from_the_eager_pass_fails_its_row(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = [0]
    honest = correct.vectors

    def drifting(*args: Any) -> np.ndarray:
        calls[0] += 1
        return honest(*args) + calls[0] * 1e-6

    monkeypatch.setattr(correct, "vectors", drifting)
    correct.parity(bench)
    rows = [row for row in bench.rows if row.engine == "sdpa"]
    assert len(rows) == 2 and all(row.extra["replay_equals_eager"] == "false" for row in rows)
    assert all(row.note == "FAILED: a replay differs from the eager pass" for row in rows)


def test_a_row_that_ran_another_kernel_says_so(bench: Bench) -> None:
    """FlashInfer has no heads of 16, so what is measured under its name is the oracle."""
    bench.installed = frozenset({"flashinfer_fa2", "varlen", "sdpa"})
    correct.parity(bench)
    correct.race(bench)
    rows = [row for row in bench.rows if row.engine == "flashinfer_fa2" and row.suite == "parity"]
    assert rows and all(row.note == "ran sdpa, not flashinfer_fa2" for row in rows)
    raced = {row.case.rpartition(" ")[2]: row for row in bench.rows if row.suite == "race"}
    assert raced["flashinfer_fa2"].note == "ran sdpa, not flashinfer_fa2"
    assert raced["flashinfer_fa3"].note == "absent" and "auto" not in raced


def test_memory_per_graph_is_what_is_missing_from_the_card(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three MiB go to each graph; what torch caches for eager passes is not the graphs'."""
    card = Rehearsal(at_once=True)
    cached = [0]
    capture, launch = RehearsalStream.capture, RehearsalStream.launch

    def taking(self: RehearsalStream, work: Any) -> Any:
        card.free -= 3 << 20
        return capture(self, work)

    def caching(self: RehearsalStream, work: Any) -> None:
        cached[0] += 5 << 20
        card.free -= 5 << 20
        launch(self, work)

    def trim() -> None:
        card.free += cached[0]
        cached[0] = 0

    monkeypatch.setattr(RehearsalStream, "capture", taking)
    monkeypatch.setattr(RehearsalStream, "launch", caching)
    monkeypatch.setattr(card, "trim", trim)
    bench.runtime, bench.shapes = card, (TINY_BERT,)
    speed.captures(bench)
    (row,) = bench.rows
    assert row.samples >= 2 and row.extra["mib_per_graph"] == 3.0


def test_it_starts_from_a_plain_checkout_and_says_in_one_line_that_there_is_no_card() -> None:
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
