"""Samples, percentiles, rows and checks of the benchmarks."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import rows
from benchmarks.harness import Limits, WrongVectorsError, check_vectors, sample
from benchmarks.report import END, START, render, update_readme
from benchmarks.rows import Row, percentiles


def _row(**changed: object) -> Row:
    given = {"suite": "A", "case": "1x8", "engine": "e", "unit": "ms", "samples": 4}
    return Row(**{**given, "machine": "m", "versions": {"hedgerow": "1"}, **changed})


def test_percentiles_are_those_numpy_gives() -> None:
    values = [float(v) for v in np.random.default_rng(0).permutation(1000)]
    found = percentiles(values)
    assert found["p50"] == pytest.approx(np.median(values))
    assert found["p99"] == pytest.approx(np.percentile(values, 99))
    assert found["max"] == 999


def test_warm_up_calls_are_made_first_and_not_timed() -> None:
    calls: list[int] = []
    times = sample(calls.append, Limits(samples=4, seconds=10, warm_up=3))
    assert calls == list(range(7))
    assert len(times) == 4


def test_a_slow_call_is_timed_three_times_whatever_the_limit() -> None:
    assert len(sample(lambda _: None, Limits(samples=100, seconds=0.0, warm_up=0))) == 3


def _unit(count: int, seed: int) -> np.ndarray:
    found = np.random.default_rng(seed).standard_normal((count, 16)).astype(np.float32)
    return found / np.linalg.norm(found, axis=1, keepdims=True)


def test_vectors_within_a_thousandth_of_the_reference_pass() -> None:
    reference = _unit(5, 0)
    assert check_vectors("x", reference + 0.005 * _unit(5, 1), reference) > 0.999


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        pytest.param(lambda v: v + 0.1 * _unit(5, 2), "below 0.999", id="wrong"),
        pytest.param(lambda v: v * np.float32("nan"), "below 0.999", id="nan"),
        pytest.param(lambda v: v[:4], "shape", id="one missing"),
    ],
)
def test_vectors_off_the_reference_stop_the_run(spoil, message: str) -> None:
    reference = _unit(5, 0)
    with pytest.raises(WrongVectorsError, match=message):
        check_vectors("x", spoil(reference), reference)


def test_shuffled_answers_stop_the_run_even_when_all_vectors_are_alike() -> None:
    reference = _unit(1, 0) + 0.01 * _unit(5, 1)
    shuffled = reference[[1, 0, 2, 3, 4]]
    with pytest.raises(WrongVectorsError, match="not in the order"):
        check_vectors("x", shuffled, reference)


def test_rows_are_written_one_to_a_line_and_read_back(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(rows, "RESULTS", tmp_path)
    written = [_row(p50=1.23456789, extra={"ratio": 0.5}), _row(case="1x16", rate=3.0, note="n")]
    file = rows.write("latency", written, quick=False)
    lines = file.read_text().splitlines()
    assert lines[0] == "["
    assert json.loads(lines[1].rstrip(","))["p50"] == 1.23457
    assert rows.read("latency", tmp_path) == [_row(p50=1.23457, extra={"ratio": 0.5}), written[1]]


def test_a_quick_run_never_replaces_full_results(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(rows, "RESULTS", tmp_path)
    rows.write("latency", [_row(p50=1.0)], quick=False)
    rows.write("latency", [_row(p50=2.0)], quick=True)
    assert rows.read("latency", tmp_path)[0].p50 == 1.0


def test_the_table_shows_only_columns_that_hold_something() -> None:
    text = rows.table([_row(p50=1.0, p90=2.0, p99=3.0, max=4.0)])
    assert text.splitlines()[0].split() == [
        "suite",
        "case",
        "engine",
        "unit",
        "p50",
        "p90",
        "p99",
        "max",
        "n",
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.99996, "0.99996"),
        (0.5, "0.5"),
        (12.345, "12.3"),
        (34567.8, "34,568"),
        ("a", "a"),
        (None, ""),
    ],
)
def test_numbers_are_short_but_a_cosine_keeps_its_digits(value: object, text: str) -> None:
    assert rows.number(value) == text


def _results(folder: Path, monkeypatch) -> Path:
    monkeypatch.setattr(rows, "RESULTS", folder)
    rows.write("latency", [_row(p50=1.5, p90=2.0, p99=3.0, max=4.0, model="minilm")], quick=False)
    engine = [
        _row(suite="engine", p50=2.0, model="minilm", extra={"best": 1.9, "of floor": 0.4}),
        _row(
            suite="engine", engine="vino", case="all", samples=0, model="minilm", note="absent: x"
        ),
    ]
    rows.write("engine", engine, quick=False)
    return folder


def test_the_readme_section_holds_every_measured_row_and_names_the_absent(
    tmp_path, monkeypatch
) -> None:
    text = render(_results(tmp_path, monkeypatch))
    assert "| A | 1x8 | e minilm | 1.5 | 2 | 3 | 4 |" in text
    assert "| e | 1.9 (40%) |" in text
    assert "vino: absent: x" in text
    assert "Measured on m; hedgerow 1." in text
    assert "On GPUs: not measured." in text


def test_the_readme_is_changed_between_its_markers_only(tmp_path, monkeypatch) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{START}\nold\n{END}\nafter\n")
    results = _results(tmp_path, monkeypatch)
    assert update_readme(readme, results)
    text = readme.read_text()
    assert text.startswith(f"before\n{START}\n")
    assert text.endswith(f"{END}\nafter\n")
    assert "old" not in text
    assert not update_readme(readme, results)


def test_a_readme_without_markers_is_refused(tmp_path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text("no markers here")
    with pytest.raises(RuntimeError, match="needs one"):
        update_readme(readme, tmp_path)
    assert readme.read_text() == "no markers here"
