"""The engine comparison: turns, ratios, and engines in processes of their own."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.engine import compare, figures
from benchmarks.engine.cases import Case, cases_of, ragged_lengths
from benchmarks.engine.contender import Contender, ContenderError
from benchmarks.engine.figures import Run
from benchmarks.models import BERT_BASE, MINILM, QWEN3
from benchmarks.reference import save_ragged
from benchmarks.text import Pool, standard_text

OURS, PEER = "hedgerow native, 2 threads", "peer"


def _run(**changed: object) -> Run:
    contenders = [Contender(name, {}, Path("python")) for name in (OURS, PEER)]
    given = {"floor_gflops": 100.0, "quick": True, "deadline_s": float("inf"), "busy": ""}
    return Run(MINILM, contenders, **{**given, **changed})


def _case(**changed: object) -> Case:
    given = {"name": "2x8", "sequences": [np.zeros(8, np.int32)] * 2, "rounds": 2}
    return Case(**{**given, **changed})


def test_a_line_compares_with_ours_round_by_round_and_with_the_floor() -> None:
    timed = {OURS: [[1.0, 1.0, 9.0], [2.0, 2.0, 2.0]], PEER: [[3.0], [8.0]]}
    ours = figures.line(_run(), _case(), "2x8", OURS, timed)
    peer = figures.line(_run(cosine={PEER: 0.99}), _case(), "2x8", PEER, timed)
    floor_ms = MINILM.flops([8, 8]) / 100e9 * 1e3
    assert (ours.samples, ours.p50, ours.max) == (6, 2.0, 9.0)
    assert ours.extra == {"best": 1.0, "of floor": pytest.approx(floor_ms)}
    assert peer.extra["time / ours"] == pytest.approx(3.5)  # the median of 3 and 4
    assert peer.extra["of floor"] == pytest.approx(floor_ms / 3)
    assert peer.extra["min cosine"] == 0.99


def test_every_engine_has_its_turn_in_each_round_and_the_order_turns_round() -> None:
    turns = [c.name for c in compare._turns(_run(), _case(), {})]
    assert turns == [OURS, PEER, PEER, OURS]


@pytest.mark.parametrize(
    ("changed", "sequences", "names", "reason"),
    [
        pytest.param({"deadline_s": 0.0}, 2, [], "the time for this model was up", id="late"),
        pytest.param({"deadline_s": 0.0}, 1, [OURS, PEER], "", id="late but cheap"),
        pytest.param(
            {"ms_per_token": {PEER: 1e4}}, 2, [OURS, OURS], "one pass takes about 160 s", id="slow"
        ),
    ],
)
def test_an_engine_that_would_take_too_long_is_left_out_with_the_reason(
    changed: dict, sequences: int, names: list[str], reason: str
) -> None:
    skipped: dict[str, str] = {}
    case = _case(sequences=[np.zeros(8, np.int32)] * sequences)
    assert [c.name for c in compare._turns(_run(**changed), case, skipped)] == names
    assert reason in skipped.get(PEER, "")


@pytest.mark.parametrize(
    ("shape", "names"),
    [
        (MINILM, ["1x8", "1x16", "1x128", "1x512", "32x128", "100x512", "ragged 128"]),
        (BERT_BASE, ["1x8", "1x16", "1x128", "1x512", "32x128", "16x512", "ragged 32"]),
        (QWEN3, ["1x8", "1x16", "1x128", "1x512", "8x128", "4x512"]),
    ],
    ids=["MiniLM", "BERT-base", "Qwen3"],
)
def test_each_model_has_its_cases(minilm_folder: Path, shape, names: list[str]) -> None:
    pool = Pool(minilm_folder / "tokenizer.json", standard_text()[:100_000])
    cases = cases_of(shape, pool, quick=False)
    assert [case.name for case in cases] == names
    for case in cases:
        if "x" in case.name:
            count, length = map(int, case.name.split("x"))
            assert case.lengths == [length] * count


def test_ragged_lengths_are_skewed_as_real_texts_are() -> None:
    lengths = ragged_lengths(128)
    assert len(lengths) == 128
    assert min(lengths) >= 8 and max(lengths) <= 512
    assert 50 < np.median(lengths) < 85 < np.mean(lengths)


@pytest.mark.system
def test_an_engine_in_its_own_process_embeds_and_is_timed(
    minilm_folder: Path, tmp_path: Path
) -> None:
    ask = {"engine": "hedgerow", "model": str(minilm_folder), "threads": 1, "dtype": "float32"}
    ids = [np.array([101, 7592, 102], np.int32), np.array([101, 2088, 999, 102], np.int32)]
    save_ragged(tmp_path / "case.npz", ids)
    contender, case = Contender("ours", ask, Path(sys.executable)), str(tmp_path / "case.npz")
    try:
        contender.open()
        assert contender.facts["dtype"] == "float32"
        contender.call(do="embed", case=case, out=str(tmp_path / "out.npy"))
        found = np.load(tmp_path / "out.npy")
        assert found.shape == (2, 384)
        assert np.linalg.norm(found, axis=1) == pytest.approx([1, 1], abs=1e-4)
        times = contender.call(
            do="time", case=case, seconds=9, samples=4, at_least=1, warm_up=1, gap_ms=0
        )["times_ms"]
        assert len(times) == 4 and min(times) > 0
        with pytest.raises(ContenderError, match="KeyError"):
            contender.call(do="dance", case=case)
    finally:
        contender.close()


@pytest.mark.system
def test_an_engine_that_cannot_load_says_why_in_one_line(tmp_path: Path) -> None:
    ask = {"engine": "hedgerow", "model": str(tmp_path), "threads": 1}
    contender = Contender("ours", ask, Path(sys.executable))
    with pytest.raises(ContenderError, match=r"config\.json: missing") as raised:
        contender.open()
    contender.close()
    assert "\n" not in str(raised.value)
