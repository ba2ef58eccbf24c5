"""Two threads: the same bytes as one, helpers that sleep, and passes that wait for nobody."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from native_models import load, save
from transformers import BertConfig, BertModel

from hedgerow_engine.native import threads as threads_module
from hedgerow_engine.native.threads import separate_cores, usable_threads
from hedgerow_shared.ragged import RaggedBatch

needs_two_cores = pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity") or len(separate_cores()) < 2,
    reason="pinned threads need two cores of their own",
)


@pytest.fixture(autouse=True)
def unpinned():
    """Loading with two threads pins the thread that runs; give its cores back."""
    cores = os.sched_getaffinity(0)
    yield
    os.sched_setaffinity(0, cores)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    config = BertConfig(
        hidden_size=128,
        num_attention_heads=4,
        num_hidden_layers=3,
        intermediate_size=256,
        vocab_size=120,
        max_position_embeddings=600,
    )
    return save(BertModel(config, add_pooling_layer=False), tmp_path_factory.mktemp("bert"))


def _sequences(lengths, seed: int = 0) -> list[np.ndarray]:
    g = np.random.default_rng(seed)
    return [g.integers(2, 120, n).astype(np.int32) for n in lengths]


@needs_two_cores
def test_two_threads_give_the_bytes_of_one(folder, rung) -> None:
    one, two = load(folder, rung=rung.name), load(folder, rung=rung.name, threads=2)
    try:
        for length in [*range(1, 80), 127, 128, 129, 200, 300, 511, 600]:
            batch = RaggedBatch.of(_sequences([length], seed=length))
            assert np.array_equal(two.run(batch), one.run(batch)), length
        batch = RaggedBatch.of(_sequences([3, 77, 200, 1, 64, 9] * 3))
        for _ in range(50):
            assert np.array_equal(two.run(batch), one.run(batch))
    finally:
        two.close()


@needs_two_cores
def test_layers_one_by_one_give_the_same_bytes_with_two_threads(folder) -> None:
    one, two = load(folder), load(folder, threads=2)
    try:
        bulk, query = RaggedBatch.of(_sequences([90, 400, 20])), RaggedBatch.of(_sequences([5]))
        slow = two.begin(bulk)
        while not slow.step():
            assert np.array_equal(two.run(query), one.run(query))
        assert np.array_equal(slow.pooled, one.run(bulk))
    finally:
        two.close()


@needs_two_cores
def test_a_helper_sleeps_when_there_is_no_work_and_wakes_for_the_next_pass(folder) -> None:
    two = load(folder, threads=2)
    try:
        batch = RaggedBatch.of(_sequences([40]))
        want = two.run(batch)
        for _ in range(5):
            _wait_until(lambda: two.helpers_asleep == 1)
            assert np.array_equal(two.run(batch), want)
    finally:
        two.close()


@needs_two_cores
def test_a_helper_wakes_before_a_pass_that_is_announced(folder) -> None:
    two = load(folder, threads=2)
    try:
        for _ in range(200):  # a glance may come too late: it sleeps again after a moment
            _wait_until(lambda: two.helpers_asleep == 1)
            two.expect()
            end = time.monotonic() + 0.01
            while two.helpers_asleep and time.monotonic() < end:
                pass
            if not two.helpers_asleep:
                return
        pytest.fail("it never woke")
    finally:
        two.close()


@needs_two_cores
def test_any_thread_may_bring_a_pass_and_keeps_its_own_cores(folder) -> None:
    with ThreadPoolExecutor(1) as owner:
        two = owner.submit(load, folder, threads=2).result()
        one, cores = load(folder), os.sched_getaffinity(0)
        try:
            batch = RaggedBatch.of(_sequences([30]))
            want = one.run(batch)
            for _ in range(20):
                assert np.array_equal(two.run(batch), want)
                assert np.array_equal(owner.submit(two.run, batch).result(), want)
            assert os.sched_getaffinity(0) == cores
            assert owner.submit(os.sched_getaffinity, 0).result() == cores
        finally:
            two.close()


@needs_two_cores
def test_a_process_that_loses_its_cores_goes_on_with_a_line(folder, caplog) -> None:
    """As when a container is given other cores than it had."""
    two, one = load(folder, threads=2), load(folder)
    try:
        assert two._crew is not None
        two._crew._cores = [100_000, 100_001]
        batch = RaggedBatch.of(_sequences([30, 200]))
        assert np.array_equal(two.run(batch), one.run(batch))
        assert "cannot stay on cores [100000]" in caplog.text
    finally:
        two.close()


_CLAIM = """
import sys
from hedgerow_engine.native import threads
threads.separate_cores = lambda: list(range(90_000, 90_006))
print(*threads.own_cores(2), flush=True)
sys.stdin.read()
"""


def _claimer() -> subprocess.Popen[str]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-c", _CLAIM], **pipes)


@needs_two_cores
def test_processes_take_cores_of_their_own_as_long_as_there_are_some() -> None:
    processes = [_claimer()]
    try:
        assert processes[0].stdout.readline() == "90000 90001\n"
        for expected in ("90002 90003\n", "90004 90005\n", "90000 90001\n"):
            processes.append(_claimer())
            assert processes[-1].stdout.readline() == expected
        processes[1].communicate(timeout=20)  # gone, and its cores are free
        processes.append(_claimer())
        assert processes[-1].stdout.readline() == "90002 90003\n"
    finally:
        for process in processes:
            process.kill()
            process.communicate()


@needs_two_cores
def test_short_passes_are_known_with_helpers_too(folder) -> None:
    two = load(folder, threads=2)
    try:
        assert two.brief_tokens == 0
        two.warm(1.0)
        assert 0 < two.brief_tokens <= two.pass_tokens
    finally:
        two.close()


@needs_two_cores
def test_a_pass_needs_no_helper(folder, monkeypatch) -> None:
    """Nobody ever comes: the caller does everything, and the bytes are the same."""
    monkeypatch.setattr(threads_module.Crew, "_serve", lambda self, member: None)
    alone, one = load(folder, threads=2), load(folder)
    for lengths in ([9], [70, 300]):
        batch = RaggedBatch.of(_sequences(lengths))
        assert np.array_equal(alone.run(batch), one.run(batch))


@needs_two_cores
def test_a_second_model_has_two_threads_too(folder) -> None:
    first = load(folder, threads=2)
    first.run(RaggedBatch.of(_sequences([9])))
    second = load(folder, threads=2)
    assert second.threads == 2
    batch = RaggedBatch.of(_sequences([50]))
    for _ in range(20):
        assert np.array_equal(first.run(batch), second.run(batch))
    first.close()
    second.close()


@needs_two_cores
def test_closing_ends_the_helpers(folder) -> None:
    before = threading.active_count()
    two = load(folder, threads=2)
    two.run(RaggedBatch.of(_sequences([9])))
    assert threading.active_count() == before + 1
    two.close()
    assert threading.active_count() == before


def test_more_threads_than_cores_are_cut_with_a_line() -> None:
    lines: list[str] = []
    cores = len(separate_cores())
    assert usable_threads(cores + 3, lines.append) == cores
    assert len(lines) == 1 and str(cores + 3) in lines[0]


def _wait_until(condition, seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.001)
