"""Jobs from end to end: real bus, gateway and worker, a device that only takes time."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import msgpack
import numpy as np
import pytest

from hedgerow_gateway.bulk.streams import StreamOptions, stream_configs
from hedgerow_shared import subjects
from hedgerow_shared.bus import Bus, BusOptions, Message
from hedgerow_shared.jobs import BulkChunk, encode
from hedgerow_shared.ragged import Lane, OutputSpec, RaggedBatch
from hedgerow_shared.wire import Chunk, encode_chunk
from tests.bulk.bulk_stack import MODEL, Stack, assert_right, rows, vector, word_id
from tests.nats_fixture import NatsHandle, start_nats_handle

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("bulk")
    nats = start_nats_handle(folder / "nats")
    stack = Stack(folder, nats.url)
    stack.gateway("g0", "--token-ids", "native", "--bulk-chunk-sequences", "4")
    stack.worker("w0")
    try:
        stack.ready()
        yield stack
    finally:
        stack.stop()
        nats.stop()


def ask(stack: Stack, subject: str, data: bytes) -> Message:
    async def go() -> Message:
        bus = await Bus.connect(BusOptions(url=stack.url))
        try:
            return await bus.request(subject, data, timeout_s=20.0)
        finally:
            await bus.close()

    return asyncio.run(go())


def test_each_row_of_a_job_comes_back_once_with_its_vector(stack):
    sent = rows(100)
    first = stack.accepted("plain", sent[:70])
    assert (first["rows"], first["chunks"], first["known"]) == (70, 18, False)
    assert stack.accepted("plain", sent[70:], last=True)["state"] == "closed"
    status = stack.complete("plain")
    assert (status["submitted"], status["done"], status["failed"]) == (100, 100, 0)
    assert (status["tokens"], status["waiting"], status["chunks_waiting"]) == (600, 0, 0)
    for limit in (1, 7, 1000):
        assert_right(stack.results("plain", limit=limit), sent)
    assert stack.messages(subjects.STREAM_BULK) == 0


@pytest.mark.parametrize("form", ["json", "msgpack"])
def test_the_same_works_over_nats_for_any_client(stack, form):
    encode = json.dumps if form == "json" else msgpack.packb
    read = json.loads if form == "json" else msgpack.unpackb
    sent, job = rows(30, seed=2), f"nats-{form}"

    def call(subject: str, **body: object) -> dict:
        data = encode(body)
        return read(ask(stack, subject, data if isinstance(data, bytes) else data.encode()).data)

    stored = call(f"hedgerow.v1.bulk.{MODEL}", job=job, rows=sent, last=True)
    assert stored["rows"] == 30
    subject = f"hedgerow.v1.job.status.{job}"
    stack.until(lambda: call(subject)["state"] == "complete", "complete")
    page = call(f"hedgerow.v1.job.results.{job}", **{"from": 1, "limit": 1000})
    if form == "json":
        assert_right(page["results"], sent)
    else:
        found = np.frombuffer(page["data"], "<f4").reshape(page["shape"])
        by_id = dict(zip(page["ids"], found, strict=True))
        assert all(np.array_equal(by_id[row["id"]], vector(row["text"])) for row in sent)
    assert call(f"hedgerow.v1.job.cancel.{job}")["state"] == "complete"


def test_a_page_over_nats_is_no_larger_than_a_message(stack):
    sent = rows(4000, length=1, seed=3)
    stack.accepted("large", sent, last=True)
    stack.complete("large")
    found, start, pages = [], 1, 0
    while True:
        body = json.dumps({"from": start, "limit": 10_000}).encode()
        reply = ask(stack, "hedgerow.v1.job.results.large", body)
        page = json.loads(reply.data)
        assert "results" in page, page
        found += page["results"]
        pages += 1
        if not page["pending_chunks"]:
            break
        start = page["next"]
    assert pages > 1
    assert len({row["id"] for row in found}) == len(found) == 4000


def test_a_submission_sent_again_adds_nothing(stack):
    sent = rows(60, seed=4)
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda _: stack.accepted("again", sent), range(6)))
    assert sum(not answer["known"] for answer in answers) == 1
    assert stack.accepted("again", sent, last=True)["known"]
    status = stack.complete("again")
    assert (status["submitted"], status["done"]) == (60, 60)
    assert_right(stack.results("again"), sent)


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        ("float32", lambda v: v),
        ("float16", lambda v: v.astype(np.float16)),
        ("int8", lambda v: np.round(v * 127).astype(np.int8)),
        ("binary", lambda v: np.packbits(v > 0)),
    ],
    ids=["float32", "float16", "int8", "binary"],
)
def test_vectors_come_in_the_type_and_width_that_was_asked_for(stack, dtype, expected):
    sent, job = rows(9, seed=5), f"type-{dtype}"
    stack.accepted(job, sent, last=True, dtype=dtype, dimensions=16)
    stack.complete(job)
    for row, found in zip(sent, sorted(stack.results(job), key=lambda r: r["id"]), strict=True):
        whole = vector(row["text"])[:16]
        wanted = expected(whole / np.linalg.norm(whole))
        assert np.array_equal(np.array(found["embedding"], np.float32), wanted.astype(np.float32))


def test_token_ids_are_rows_like_texts(stack):
    sent = rows(8, seed=6)
    ids = [{"id": r["id"], "token_ids": [word_id(w) for w in r["text"].split()]} for r in sent]
    stack.accepted("ids", ids, last=True)
    stack.complete("ids")
    assert_right(stack.results("ids"), sent)


def test_a_text_that_was_cut_says_so_in_its_result(stack):
    long = {"id": "long", "text": " ".join(["w1"] * 600)}
    stored = stack.accepted("cut", [long], last=True)
    assert stored["truncated"] == 1
    stack.complete("cut")
    (found,) = stack.results("cut")
    assert (found["tokens_seen"] > 512, found["tokens_used"], found["truncated"]) == (
        True,
        512,
        True,
    )
    refused = stack.submit("cut-not", [long], truncate="NONE")
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "rows[0].text"


def test_results_that_were_released_are_gone_and_still_counted(stack):
    sent = rows(40, seed=7)
    stack.accepted("free", sent, last=True)
    stack.complete("free")
    whole = stack.results("free", limit=1000)
    page = stack.http("GET", "/v1/jobs/free/results", params={"from": 1, "limit": 8}).json()
    rest = stack.results("free", limit=1000)
    query = {"from": page["next"], "release": "true", "limit": 1000}
    after = stack.http("GET", "/v1/jobs/free/results", params=query).json()
    assert after["results"] == rest[8:] == whole[8:]
    assert stack.results("free", limit=1000) == whole[8:]
    assert stack.status("free")["done"] == 40


def test_answers_are_as_described(stack):
    described = stack.http("GET", "/openapi.json").json()
    schemas = described["components"]["schemas"]
    stored = stack.accepted("described", rows(3), last=True)
    bodies = {
        "BulkAnswer": stored,
        "JobStatus": stack.complete("described"),
        "ResultPage": stack.http("GET", "/v1/jobs/described/results").json(),
    }
    for name, body in bodies.items():
        schema = schemas[name]
        assert set(schema["required"]) <= set(body) <= set(schema["properties"]), name


def test_what_somebody_else_put_among_the_results_is_left_out_of_the_pages(stack):
    sent = rows(9, seed=22)
    stack.accepted("noise", sent)
    stack.until(lambda: stack.status("noise")["done"] == 9, "done")
    stack.streams(lambda js: js.publish(subjects.result("noise", "x-0"), b"nonsense"))
    more = [{**row, "id": f"more-{row['id']}"} for row in rows(9, seed=23)]
    stack.accepted("noise", more, last=True)
    assert stack.complete("noise")["done"] == 18
    for limit in (1, 1000):
        assert_right(stack.results("noise", limit=limit), sent + more)


CONFLICTS = {
    "another dtype": ({"dtype": "int8"}, "dtype"),
    "another width": ({"dimensions": 8}, "dimensions"),
    "another prompt": ({"prompt": "query: "}, "prompt"),
    "another way to cut": ({"truncate": "START"}, "truncate"),
}


@pytest.mark.parametrize("case", CONFLICTS, ids=str)
def test_a_job_id_that_is_used_for_another_job_is_refused_with_what_differs(stack, case):
    change, field = CONFLICTS[case]
    stack.accepted("used", rows(3))
    response = stack.submit("used", rows(3), **change)
    assert response.status_code == 409
    error = response.json()["error"]
    assert (error["code"], error["param"]) == ("job_conflict", field)


def test_a_closed_job_takes_no_other_rows_but_knows_its_own(stack):
    sent = rows(10, seed=8)
    stack.accepted("shut", sent, last=True)
    assert stack.accepted("shut", sent, last=True)["known"]
    response = stack.submit("shut", rows(10, seed=9))
    assert (response.status_code, response.json()["error"]["code"]) == (409, "job_conflict")
    assert stack.complete("shut")["submitted"] == 10


def test_what_is_not_there_and_what_has_no_time_is_refused(stack):
    for method, path in (("GET", ""), ("GET", "/results"), ("DELETE", "")):
        response = stack.http(method, f"/v1/jobs/nobody{path}")
        assert (response.status_code, response.json()["error"]["code"]) == (404, "job_not_found")
    response = stack.submit("x", rows(1), model="other")
    assert (response.status_code, response.json()["error"]["code"]) == (404, "model_not_found")
    for ttl in ("0", "-5", "nan"):
        headers = {"Hedgerow-Ttl-Ms": ttl}
        body = {"job": "late", "rows": rows(1)}
        assert stack.http("POST", "/v1/bulk", body, headers=headers).status_code == 400
    assert stack.http("GET", "/v1/jobs/late").status_code == 404


def test_a_row_that_the_engine_refuses_costs_only_itself(make_stack):
    stack = make_stack()
    stack.gateway("g0")
    for name in ("w0", "w1"):
        stack.worker(name, "--fake-raise-id", str(word_id("w1500")))
    stack.ready()
    stack.until(lambda: stack.http("GET", "/v1/models").json()["data"][0]["workers"] == 2, "both")
    sent = rows(40, seed=10)
    sent[13]["text"] += " w1500"
    stack.accepted("poison", sent, last=True)
    status = stack.complete("poison")
    assert (status["done"], status["failed"], status["workers"]) == (39, 1, 2)
    found = {row["id"]: row for row in stack.results("poison")}
    assert found["r13"]["error"]["code"] == "row_failed"
    assert_right([r for r in found.values() if r["id"] != "r13"], sent[:13] + sent[14:])


def test_rows_for_a_version_that_nobody_serves_any_more_get_an_error_and_the_job_ends(make_stack):
    stack = make_stack()
    stack.gateway("g0")
    old = stack.worker("w0")
    stack.ready()
    stack.accepted("upgraded", rows(20, seed=20))
    stack.until(lambda: stack.status("upgraded")["done"] == 20, "the first part is done")
    old.kill()
    stack.accepted("upgraded", rows(30, seed=21), last=True)
    stack.worker("w1", "--fake-version", "newer", "--bulk-version-wait-s", "2")
    status = stack.complete("upgraded")
    assert (status["done"], status["failed"]) == (20, 30)
    failed = [row for row in stack.results("upgraded") if "error" in row]
    assert len(failed) == 30
    assert all("no worker has served version" in row["error"]["message"] for row in failed)
    assert stack.messages(subjects.STREAM_DEAD) == 4, "each chunk is kept with the reason"


def test_a_chunk_under_the_subject_of_another_model_is_put_aside_and_stops_nobody(make_stack):
    stack = make_stack()
    stack.gateway("g0")
    stack.worker("w0")
    stack.ready()
    chunk = encode_chunk(
        Chunk("odd.0", "unknown", Lane.BULK, 1e6, RaggedBatch.of([[5, 6]], OutputSpec()))
    )
    body = encode(
        BulkChunk(
            job="odd", chunk="0", ids=["a"], seen=np.zeros(1, "<i4").tobytes(), wait_ms=1000,
            body=chunk,
        )
    )  # fmt: skip
    for data in (body, b"no chunk at all", b"\xc1" * 1000):
        stack.streams(lambda js, data=data: js.publish(subjects.bulk("tiny", "odd"), data))
    stack.until(lambda: stack.messages(subjects.STREAM_DEAD) == 3, "they are put aside")
    stack.until(lambda: stack.messages(subjects.STREAM_BULK) == 0, "they are settled")
    stack.accepted("after", rows(20), last=True)
    assert stack.complete("after")["done"] == 20


def test_dead_letters_push_out_the_oldest_and_keep_no_worker_from_its_work():
    configs = {c["name"]: c["discard"] for c in stream_configs(StreamOptions())}
    assert configs.pop(subjects.STREAM_DEAD) == "old"
    assert set(configs.values()) == {"new"}


def test_a_job_that_began_without_workers_is_bound_to_the_first_engine_it_meets(make_stack):
    stack = make_stack()
    stack.gateway("g0")
    stack.ready("/health/live")
    assert ":" not in stack.accepted("bound", rows(5))["fingerprint"]
    old = stack.worker("w0")
    stack.ready()
    stack.until(lambda: stack.http("GET", "/v1/models").json()["data"][0]["workers"] == 1, "it")
    bound = stack.accepted("bound", rows(5, seed=30))["fingerprint"]
    assert bound.endswith(":fake")
    old.kill()
    stack.worker("w1", "--fake-version", "newer")
    stack.until(lambda: "w1" in stack.joined(), "w1 has joined")
    stack.until(
        lambda: stack.submit("bound", rows(5, seed=31)).status_code == 409, "the gateway knows it"
    )
    error = stack.submit("bound", rows(5, seed=31)).json()["error"]
    assert (error["code"], error["param"]) == ("job_conflict", "fingerprint")


def test_a_cancelled_job_drops_what_waits_and_takes_no_more(make_stack):
    stack = make_stack()
    stack.gateway("g0")
    stack.ready("/health/live")
    stack.accepted("gone", rows(50))
    stack.accepted("stays", rows(20, seed=11), last=True)
    waiting = 'hedgerow_bulk_chunks_waiting{model="tiny"} 10.0'
    stack.until(lambda: waiting in stack.http("GET", "/metrics").text, "the backlog is shown")
    # Chunks of 8 rows of 6 words: what an autoscaler divides by what one worker does in a second.
    stack.until(
        lambda: stack.metric("hedgerow_bulk_tokens_waiting") == 10 * 8 * 6, "tokens are shown"
    )
    assert 0 < stack.metric("hedgerow_bulk_oldest_seconds") < 60
    before = stack.messages(subjects.STREAM_BULK)
    cancelled = stack.http("DELETE", "/v1/jobs/gone").json()
    assert (cancelled["state"], cancelled["submitted"], cancelled["done"]) == ("cancelled", 50, 0)
    assert (before, stack.messages(subjects.STREAM_BULK)) == (7 + 3, 3)
    assert stack.http("DELETE", "/v1/jobs/gone").json()["state"] == "cancelled"
    response = stack.submit("gone", rows(50))
    assert (response.status_code, response.json()["error"]["code"]) == (409, "job_conflict")
    stack.worker("w0")
    assert stack.complete("stays")["done"] == 20
    assert stack.status("gone")["done"] == 0
    for name in ("tokens_waiting", "oldest_seconds"):
        stack.until(lambda name=name: not stack.metric(f"hedgerow_bulk_{name}"), "nothing waits")


def test_a_full_stream_is_answered_503_at_once_and_takes_the_rest_later(make_stack):
    stack = make_stack()
    stack.gateway("g0", "--bulk-max-bytes", "20000")
    stack.ready("/health/live")
    parts = [rows(64, seed=seed) for seed in range(12, 17)]
    stack.accepted("full", parts[0])
    refused = None
    for part in parts[1:]:
        began_s = time.monotonic()
        response = stack.submit("full", part)
        if response.status_code != 200:
            refused = (response, time.monotonic() - began_s)
            break
    assert refused is not None, "20,000 bytes hold no 320 rows"
    response, took_s = refused
    assert (response.status_code, response.json()["error"]["code"]) == (503, "storage_unavailable")
    assert took_s < 2.0 and int(response.headers["Retry-After"]) >= 1
    stack.worker("w0")
    for part in parts:
        stack.accepted("full", part)
    stack.accepted("full", [], last=True)
    status = stack.complete("full")
    assert (status["submitted"], status["done"]) == (320, 320)


def test_without_jetstream_jobs_are_refused_with_the_reason_and_queries_are_not(
    make_stack, start_nats: Callable[..., NatsHandle]
):
    stack = make_stack(start_nats(jetstream=False).url)
    stack.gateway("g0")
    stack.worker("w0")
    stack.ready()
    began_s = time.monotonic()
    response = stack.submit("none", rows(3))
    assert time.monotonic() - began_s < 2.0
    assert response.status_code == 503
    assert "without JetStream" in response.json()["error"]["message"]
    assert stack.http("GET", "/v1/jobs/none").status_code == 503
    assert stack.http("POST", "/v1/embeddings", {"input": "w1"}).status_code == 200


def test_a_stream_with_other_settings_is_left_alone_and_named_with_the_remedy(
    make_stack, start_nats: Callable[..., NatsHandle]
):
    stack = make_stack(start_nats().url)
    other = {"name": "HEDGEROW_RESULT", "subjects": ["something.else"], "storage": "memory"}
    stack.streams(lambda js: js.call("STREAM.CREATE.HEDGEROW_RESULT", other))
    gateway = stack.gateway("g0")
    stack.worker("w0")
    stack.ready()
    response = stack.submit("other", rows(3))
    assert response.status_code == 503
    message = response.json()["error"]["message"]
    assert "HEDGEROW_RESULT exists with subjects" in message and "nats stream rm" in message
    assert "HEDGEROW_RESULT exists" in gateway.log.read_text()
    info = stack.streams(lambda js: js.stream_info("HEDGEROW_RESULT"))
    assert info["config"]["subjects"] == ["something.else"], "it was not changed"
    stack.streams(lambda js: js.call("STREAM.DELETE.HEDGEROW_RESULT"))
    assert stack.accepted("other", rows(3), last=True)["rows"] == 3
    assert stack.complete("other")["done"] == 3


def test_a_gateway_killed_in_the_middle_of_a_job_loses_nothing_acknowledged(make_stack):
    stack = make_stack()
    first = stack.gateway("g0")
    stack.worker("w0")
    stack.ready()
    parts = [[{**r, "id": f"{n}-{r['id']}"} for r in rows(200, seed=n)] for n in range(20)]
    acknowledged = []

    def send(n: int) -> None:
        try:
            if stack.submit("resume", parts[n]).status_code == 200:
                acknowledged.append(n)
        except Exception:
            pass  # the gateway died with it: this is what the test is about

    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(send, n) for n in range(len(parts))]
        stack.until(lambda: len(acknowledged) >= 3, "some parts are acknowledged")
        first.kill()
        for future in futures:
            future.result()
    assert len(acknowledged) < len(parts), "it died before the end"
    stack.gateway("g1")
    stack.ready()
    counted = stack.status("resume")["submitted"]
    assert counted >= 200 * len(acknowledged), "what was acknowledged is known to the next one"
    known = [stack.accepted("resume", part)["known"] for part in parts]
    assert all(known[n] for n in acknowledged)
    stack.accepted("resume", [], last=True)
    status = stack.complete("resume")
    assert (status["submitted"], status["done"]) == (4000, 4000)
    assert_right(stack.results("resume", limit=10_000), [r for part in parts for r in part])


def test_workers_stopped_in_turn_during_a_job_lose_nothing_and_end_with_0(make_stack):
    stack = make_stack()
    stack.gateway("g0")
    workers = [stack.worker(f"w{n}", "--fake-floor-ms", "4") for n in range(2)]
    stack.ready()
    sent = rows(4000, seed=20)
    stack.accepted("turns", sent, last=True)
    for n, worker in enumerate(workers):
        stack.until(lambda: stack.status("turns")["done"] > 0, "the job runs")
        worker.process.send_signal(signal.SIGTERM)
        assert worker.process.wait(20) == 0, worker.log.read_text()
        stack.worker(f"again{n}")
    assert stack.complete("turns")["done"] == 4000
    assert_right(stack.results("turns", limit=10_000), sent)


def test_a_part_sent_again_through_a_gateway_that_cuts_otherwise_adds_nothing(make_stack):
    stack = make_stack()
    stack.gateway("g0", "--bulk-chunk-sequences", "4")
    stack.worker("w0")
    stack.ready()
    sent = rows(50, seed=21)
    assert not stack.accepted("cuts", sent)["known"]
    stack.gateway("g1", "--bulk-chunk-sequences", "7")
    stack.ready()
    assert stack.accepted("cuts", sent, last=True)["known"]
    assert stack.complete("cuts")["done"] == 50
    assert_right(stack.results("cuts"), sent)


def test_a_bus_killed_in_the_middle_of_a_job_costs_nothing_acknowledged(
    make_stack, start_nats: Callable[..., NatsHandle]
):
    nats = start_nats()
    stack = make_stack(nats.url)
    stack.gateway("g0", "--bulk-ack-wait-s", "2")
    for n in range(2):
        stack.worker(f"w{n}", "--fake-floor-ms", "5")
    stack.ready()
    parts = [[{**r, "id": f"{n}-{r['id']}"} for r in rows(300, seed=n)] for n in range(10)]
    for n, part in enumerate(parts):
        if n in (3, 6):
            nats.kill()
            time.sleep(0.3)
            nats.restart()
        stack.accepted("bus", part)
    stack.accepted("bus", [], last=True)
    assert stack.complete("bus")["done"] == 3000
    assert_right(stack.results("bus", limit=10_000), [r for part in parts for r in part])
