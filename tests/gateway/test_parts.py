"""The small parts: pool, gate, call headers, latencies, figures, fleet."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from hedgerow_gateway.call import read_call, read_ttl
from hedgerow_gateway.fleet import Fleet, Worker
from hedgerow_gateway.latency import Latencies
from hedgerow_gateway.limits import Gate
from hedgerow_gateway.metrics import Metrics
from hedgerow_gateway.models import open_models
from hedgerow_gateway.pool import SLICE_CHARS, SlicePool, slices
from hedgerow_gateway.tokenizer import open_tokenizer
from hedgerow_shared.bus import Message
from hedgerow_shared.errors import BadInputError, OverloadedError, StartupError, TooLargeError
from hedgerow_shared.fleet import FleetEvent, FleetModel, encode_event
from hedgerow_shared.modelcard import read_card


@pytest.mark.parametrize("sizes", [[], [1], [10] * 20_000, [SLICE_CHARS * 3, 5, SLICE_CHARS, 1]])
def test_slices_cover_all_texts_in_order_and_are_about_64_kb(sizes):
    texts = ["x" * size for size in sizes]
    found = list(slices(texts))
    assert [i for start, stop in found for i in range(start, stop)] == list(range(len(texts)))
    for start, stop in found:
        assert stop - start == 1 or sum(sizes[start:stop]) <= SLICE_CHARS


async def test_small_requests_stay_on_the_loop_and_large_ones_leave_it(toy_folders):
    tokenizer = open_tokenizer(read_card(toy_folders["wordpiece"]), log=print)
    threads: set[int] = set()

    def encode(texts):
        threads.add(threading.get_ident())
        return tokenizer.encode(texts, limit=64)

    pool = SlicePool(2)
    await pool.encode(["short"] * 10, encode)
    assert threads == {threading.get_ident()}
    threads.clear()
    texts = [f"word {i}" * 20 for i in range(3000)]
    found = await pool.encode(texts, encode)
    assert threading.get_ident() not in threads
    whole = tokenizer.encode(texts, limit=64)
    assert np.array_equal(found.input_ids, whole.input_ids)
    assert np.array_equal(found.cu_seqlens, whole.cu_seqlens)
    pool.close()


async def test_a_large_request_leaves_the_loop_to_others(toy_folders):
    tokenizer = open_tokenizer(read_card(toy_folders["wordpiece"]), log=print)
    pool, turns = SlicePool(1), 0
    texts = ["some ordinary words of a document " * 30] * 1000
    big = asyncio.ensure_future(pool.encode(texts, lambda t: tokenizer.encode(t, limit=64)))
    while not big.done():
        await asyncio.sleep(0.001)
        turns += 1
    assert turns > len(list(slices(texts)))
    pool.close()


def test_the_gate_refuses_by_size_by_number_and_by_bytes():
    gate = Gate(max_body_bytes=100, max_requests=2, max_bytes=120)
    with pytest.raises(TooLargeError) as raised:
        gate.enter(101)
    assert "--max-body-bytes" in raised.value.message
    first = gate.enter(100)
    with pytest.raises(OverloadedError):
        gate.enter(30)
    second = gate.enter(10)
    with pytest.raises(OverloadedError):
        gate.enter(1)
    first.leave()
    third = gate.enter(90)
    for held in (third, second, second):
        held.leave()
    assert (gate.requests, gate.bytes) == (0, 0)


def test_a_request_that_has_sent_nothing_takes_no_room_and_one_that_grows_may_be_refused():
    gate = Gate(max_body_bytes=100, max_requests=9, max_bytes=120)
    idle = [gate.enter() for _ in range(4)]
    busy = gate.enter(100)
    idle[0].grow(20)
    with pytest.raises(OverloadedError):
        idle[1].grow(1)
    busy.leave()
    idle[1].grow(1)
    for held in idle:
        held.leave()
    assert (gate.requests, gate.bytes) == (0, 0)


def test_a_lone_request_is_never_refused_for_the_bytes_of_all():
    alone = Gate(max_body_bytes=100, max_requests=2, max_bytes=50).enter(80)
    alone.grow(20)


def call(headers):
    return read_call(headers, "json", ttl_s=read_ttl(headers, 30, 600))


def test_headers_are_read_in_any_letter_case():
    for name in ("Hedgerow-Ttl-Ms", "hedgerow-ttl-ms", "x-request-timeout-ms"):
        assert call({name: "1500"}).ttl_s == 1.5
    assert call({}).ttl_s == 30
    assert call({"hedgerow-ttl-ms": "999999999"}).ttl_s == 600
    assert call({"Hedgerow-Partial": "true"}).partial
    assert call({"hedgerow-lane": "BULK"}).bulk


@pytest.mark.parametrize("text", ["0", "-5", "soon", "nan", "inf", ""])
def test_a_time_that_is_no_positive_number_is_refused_by_name(text):
    with pytest.raises(BadInputError) as raised:
        call({"Hedgerow-Ttl-Ms": text})
    assert raised.value.param == "Hedgerow-Ttl-Ms"


def test_an_unknown_lane_is_refused():
    with pytest.raises(BadInputError):
        call({"Hedgerow-Lane": "express"})


def test_a_trace_is_passed_on_only_if_it_is_one():
    good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    assert call({"traceparent": good}).trace == good
    assert call({"traceparent": "x\r\ny"}).trace == ""


def test_an_attempt_may_take_eight_times_the_recent_p99():
    latencies = Latencies()
    ask = {"floor_s": 1.0, "factor": 8.0, "unknown_s": 10.0}
    assert latencies.attempt_s(**ask) == 10
    for _ in range(300):
        latencies.add(0.01)
    assert latencies.attempt_s(**ask) == 1
    for _ in range(32):
        latencies.add(0.5)
    assert latencies.attempt_s(**ask) == 4


def test_metrics_are_what_prometheus_reads():
    metrics = Metrics()
    metrics.request("http", "embed", "m", "ok", 0.004)
    metrics.request("http", "embed", "m", "ok", 99.0)
    metrics.tokens("m", 100, 2)
    fleet = Fleet(None, {}, lambda: 0.0)
    fleet.workers["w1"] = Worker("w1", {}, 0.0)
    fleet.workers["w1"].stats = {
        "batches": 7,
        "name": "text is left out",
        "bad name": 1,
        "models": {
            "m": {"engine": {"graph_replays": 5}, "lanes": {"query": {"backlog_tokens": 3}}}
        },
    }
    metrics.watch(fleet, lambda: {"workers": 1})
    found = {
        (s.name, *sorted(s.labels.items())): s.value
        for family in text_string_to_metric_families(metrics.text().decode())
        for s in family.samples
    }
    ok = (("code", "ok"), ("model", "m"), ("route", "embed"), ("transport", "http"))
    assert found["hedgerow_requests_total", *ok] == 2
    labels = (("model", "m"), ("route", "embed"), ("transport", "http"))
    assert found["hedgerow_request_seconds_count", *labels] == 2
    assert found["hedgerow_request_seconds_bucket", ("le", "0.005"), *labels] == 1
    assert found["hedgerow_request_seconds_bucket", ("le", "+Inf"), *labels] == 2
    assert found["hedgerow_truncated_inputs_total", ("model", "m")] == 2
    assert found["hedgerow_worker_batches", ("worker", "w1")] == 7
    assert found["hedgerow_engine_graph_replays", ("model", "m"), ("worker", "w1")] == 5
    lane = (("lane", "query"), ("model", "m"), ("worker", "w1"))
    assert found["hedgerow_lane_backlog_tokens", *lane] == 3


def facts(fingerprint):
    return FleetModel(
        fingerprint="e", gateway_fingerprint=fingerprint, dimension=8, max_seq_len=64,
        task="embed", dtype="float32",
    )  # fmt: skip


def announce(fleet, event, worker, models):
    data = encode_event(FleetEvent(event=event, worker=worker, models=models))
    fleet._announced(Message("hedgerow.fleet", data))


def test_a_fleet_knows_who_joined_who_left_and_what_is_missing():
    fleet = Fleet(None, {"m": "g", "n": "h"}, lambda: 5.0)
    assert fleet.missing() == ["m", "n"]
    announce(fleet, "joined", "w1", {"m": facts("g"), "other": facts("x")})
    assert fleet.missing() == ["n"]
    announce(fleet, "left", "w1", {})
    assert fleet.missing() == ["m", "n"]
    fleet._announced(Message("hedgerow.fleet", b"\xc1garbage"))


def test_a_worker_with_another_tokenizer_or_length_does_not_serve(caplog):
    fleet = Fleet(None, {"m": "g"}, lambda: 5.0)
    for _ in range(3):
        announce(fleet, "joined", "w1", {"m": facts("different")})
    assert fleet.missing() == ["m"]
    assert sum("another tokenizer" in r.message for r in caplog.records) == 1


def test_the_other_worker_is_the_least_loaded_of_those_heard_since():
    now = [0.0]
    fleet = Fleet(None, {"m": "g"}, lambda: now[0])
    for worker in ("w1", "w2", "w3"):
        announce(fleet, "joined", worker, {"m": facts("g")})
    now[0] = 10.0
    fleet.heard("w2", 500)
    fleet.heard("w3", 50)
    assert fleet.other("m", (), since_s=5.0) == "w3"
    assert fleet.other("m", ("w3",), since_s=5.0) == "w2"
    assert fleet.other("m", ("w2", "w3"), since_s=5.0) is None
    assert fleet.other("m", ("w2", "w3")) == "w1"
    assert fleet.other("unknown", ()) is None


@pytest.mark.parametrize(
    ("flags", "lengths", "names"),
    [
        ((), (), ["--model"]),
        (("toy={folder}", "toy={folder}"), (), ["toy"]),
        (("toy={folder}",), ("9999",), ["--max-seq-len"]),
        (("toy={folder}",), ("other=9",), ["other"]),
        (("toy=/nowhere/at/all",), (), ["/nowhere/at/all"]),
    ],
    ids=["none", "twice", "too-long", "no-alias", "no-folder"],
)
def test_models_that_cannot_be_served_are_one_line(toy_folders, flags, lengths, names):
    flags = [flag.format(folder=toy_folders["wordpiece"]) for flag in flags]
    with pytest.raises(StartupError) as raised:
        open_models(flags, lengths, log=print)
    assert "\n" not in str(raised.value)
    assert all(name in str(raised.value) for name in names)


def test_the_gateway_needs_no_torch(tmp_path: Path):
    import subprocess
    import sys

    code = (
        "import sys; sys.modules['torch'] = None; sys.modules['safetensors'] = None\n"
        "import hedgerow_gateway.__main__\n"
        "assert not [m for m in sys.modules if m.startswith(('transformers', 'numba', 'llvmlite'))]"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
