"""The suites measure what they say, against a stub server."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
import pytest

from benchmarks.clients import aio
from benchmarks.harness import WrongVectorsError
from benchmarks.peers.servers import beside_ours
from benchmarks.rows import Row
from benchmarks.suites import concurrency, latency, scoring, throughput
from benchmarks.suites.bulk import HttpBatches, JobLoad, bulk_load
from benchmarks.suites.context import MINILM, Bench, model_for, warm_up
from benchmarks.suites.reindex import open_loop
from benchmarks.text import Pool, standard_text
from tests.benchmarks.conftest import StubServer, vector_of


@pytest.fixture
def bench(stub: StubServer, minilm_folder: Path) -> Bench:
    pool = Pool(minilm_folder / "tokenizer.json", standard_text()[:100_000])
    return Bench(target=stub.target, pool=pool, quick=True, dtype="float32", busy="")


def _lengths(stub: StubServer) -> set[tuple[int, int]]:
    """(inputs, tokens of the first) of every embeddings request."""
    return {(len(b["input"]), len(b["input"][0])) for path, b in stub.seen if "embed" in path}


def test_lengths_past_minilms_positions_run_on_the_long_model() -> None:
    assert [model_for(n) for n in (16, 512, 513, 4096)] == ["minilm", "minilm", "long", "long"]


def test_suite_a_sends_one_input_of_each_length_at_a_time(bench: Bench, stub: StubServer) -> None:
    rows = latency.run(bench)
    assert [row.case for row in rows] == ["1x128", "1x512", "1x4096"]
    assert _lengths(stub) == {(1, 128), (1, 512), (1, 4096)}
    assert {b["model"] for _, b in stub.seen if len(b["input"][0]) == 4096} == {"long"}
    assert all(row.p50 <= row.p90 <= row.p99 <= row.max for row in rows)


def test_suite_b_scores_5_25_and_50_documents_of_512_tokens(bench: Bench, stub: StubServer) -> None:
    rows = scoring.run(bench)
    assert [row.case for row in rows] == ["5x512", "25x512", "50x512"]
    sizes = {(len(b["documents"]), len(b["documents"][0]), len(b["query"])) for _, b in stub.seen}
    assert sizes == {(5, 512, 16), (25, 512, 16), (50, 512, 16)}


@pytest.mark.system
def test_suite_c_counts_what_four_processes_got_and_sends_refused_requests_again(
    bench: Bench, stub: StubServer, tmp_path: Path
) -> None:
    plans = [
        throughput.Plan(stub.target.host, stub.target.port, [_saved(bench, tmp_path, i)], 2, 0.2)
        for i in range(throughput.PROCESSES)
    ]
    stub.refusals = 3
    done = throughput.hammer(plans)
    assert sum(d.refused for d in done) == 3
    assert len(stub.seen) == len(done) + 3
    assert all(d.ended > d.started for d in done)


def _saved(bench: Bench, folder: Path, number: int) -> str:
    file = folder / str(number)
    file.write_bytes(bench.target.request(MINILM, bench.inputs(16, 2, seed=number)))
    return str(file)


@pytest.mark.system
def test_a_load_process_that_fails_fails_the_suite(tmp_path: Path) -> None:
    (tmp_path / "r").write_bytes(b"GET / HTTP/1.1\r\n\r\n")
    with pytest.raises(RuntimeError, match="load process failed: ConnectionRefusedError"):
        throughput.hammer([throughput.Plan("127.0.0.1", 1, [str(tmp_path / "r")], 1, 0.1)])


def test_suite_d_keeps_the_wanted_number_of_texts_in_flight(stub: StubServer) -> None:
    requests = [stub.target.request("minilm", [f"t{i}"]) for i in range(8)]
    loop = concurrency.closed_loop(
        stub.target.host, stub.target.port, requests,
        level=4, samples=40, seconds=5, warm_up=1,
    )  # fmt: skip
    times, wall_s = aio.run(loop)
    assert 40 <= len(times) < 44
    assert len(stub.seen) == len(times) + 4
    assert wall_s > 0


def test_an_open_loop_times_queries_from_when_they_were_due(stub: StubServer) -> None:
    requests = [stub.target.request("minilm", [f"t{i}"]) for i in range(8)]
    seen = aio.run(open_loop(stub.target.host, stub.target.port, requests, rate=100, seconds=0.5))
    assert seen.failed == 0
    assert len(seen.times_ms) == 50
    assert min(seen.times_ms) > 0


def test_a_refused_query_is_counted_as_failed_and_not_as_fast(stub: StubServer) -> None:
    stub.refusals = 1000
    requests = [stub.target.request("minilm", ["t"])]
    seen = aio.run(open_loop(stub.target.host, stub.target.port, requests, rate=50, seconds=0.2))
    assert (seen.failed, seen.times_ms) == (10, [])


def test_bulk_counts_a_request_in_proportion_to_the_window(stub: StubServer) -> None:
    load = HttpBatches("h", 1, [], sequences=10, tokens=100)
    load._done = [(0.0, 2.0), (1.0, 3.0), (5.0, 6.0)]
    assert load.tokens_between(1.0, 4.0) == pytest.approx((0.5 + 1.0 + 0.0) * 1000)


def test_bulk_flows_until_it_is_stopped(stub: StubServer) -> None:
    requests = [stub.target.request("minilm", ["t"])] * 4
    load = HttpBatches(stub.target.host, stub.target.port, requests)
    before = threading.active_count()
    load.start(30.0)
    load.wait_flowing()
    load.stop()
    sent = len(stub.seen)
    time.sleep(0.05)
    assert len(stub.seen) == sent > 0
    assert threading.active_count() <= before + 4  # the stub keeps a thread per open connection


def test_bulk_that_never_flows_is_an_error_and_not_a_zero() -> None:
    load = HttpBatches("127.0.0.1", 1, [b"x"] * 4)
    load.start(5.0)
    with pytest.raises(RuntimeError, match="bulk does not flow"):
        load.wait_flowing()
    load.stop()


@pytest.mark.parametrize(("jobs", "kind"), [(True, JobLoad), (False, HttpBatches)])
def test_bulk_takes_the_durable_lane_where_there_is_one(
    bench: Bench, stub: StubServer, jobs: bool, kind: type
) -> None:
    stub.jobs = jobs
    assert isinstance(bulk_load(bench), kind)


def test_a_job_always_has_rows_waiting_and_is_cancelled_at_the_end(
    bench: Bench, stub: StubServer
) -> None:
    stub.jobs = True
    load = bulk_load(bench)
    load.start(30.0)
    load.wait_flowing()
    load.stop()
    rows = [row for path, body in stub.seen if path == "/v1/bulk" for row in body.get("rows", ())]
    assert [row["id"] for row in rows] == list(range(len(rows)))
    assert {len(row["token_ids"]) for row in rows} == {256}
    assert len({body["job"] for _, body in stub.seen if "job" in body}) == len(stub.cancelled) == 1


def test_a_job_s_tokens_are_interpolated_between_two_looks(bench: Bench) -> None:
    load = JobLoad(bench.target, [])
    load._progress = [(0.0, 0), (2.0, 100), (4.0, 140)]
    assert load.tokens_between(1.0, 3.0) == pytest.approx((120 - 50) * 256)


def test_a_peer_s_row_says_how_it_compares_with_ours() -> None:
    def row(engine: str, suite: str, case: str, **figures: float) -> Row:
        return Row(suite=suite, case=case, engine=engine, unit="ms", samples=1, **figures)

    rows = [
        row("hedgerow", "A", "1x8", p50=2.0),
        row("hedgerow", "A", "1x9", p50=4.0),
        row("hedgerow", "C", "100x512", rate=50.0),
        row("hedgerow for latency", "A", "1x9", p50=2.0),
        row("vllm", "A", "1x9", p50=10.0),
        row("vllm", "C", "60x512", rate=20.0),
        row("infinity", "all", "all"),
    ]
    extras = [dict(r.extra) for r in beside_ours(rows)]
    assert extras == [
        {},
        {},
        {},
        {"time / ours": 0.5},
        {"time / ours": 2.5, "time / ours for latency": 5.0},
        {"rate / ours": 0.4},
        {},
    ]


def test_the_warm_up_stops_a_server_whose_vectors_are_not_the_oracles(bench: Bench) -> None:
    ids = bench.pool.ids(16, 3)
    right = np.stack([vector_of(i.tolist()) for i in ids])
    assert warm_up(bench, {MINILM: (ids, right)})[MINILM] == pytest.approx(1.0)
    with pytest.raises(WrongVectorsError):
        warm_up(bench, {MINILM: (ids, np.roll(right, 1, axis=0))})
