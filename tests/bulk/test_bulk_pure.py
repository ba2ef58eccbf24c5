"""The parts of the bulk lane without a clock or a bus."""

from __future__ import annotations

import base64
import contextlib
import json
import random
from datetime import UTC, datetime, timedelta

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hedgerow_gateway.bulk import pages
from hedgerow_gateway.bulk.backlog import age_s
from hedgerow_gateway.bulk.parts import Part, part_key, spans
from hedgerow_gateway.bulk.progress import Progress, Rate, decode, encode
from hedgerow_gateway.bulk.records import Job
from hedgerow_gateway.bulk.streams import StreamOptions, refuse_other, stream_configs
from hedgerow_gateway.splitter import ChunkLimits
from hedgerow_gateway.tokenizer.encoded import from_ids
from hedgerow_scheduler.bulk_attempts import Attempt, begin
from hedgerow_scheduler.bulk_attempts import decode as decode_attempt
from hedgerow_scheduler.bulk_attempts import encode as encode_attempt
from hedgerow_shared import subjects
from hedgerow_shared.bus.jetstream import Stored
from hedgerow_shared.errors import BadChunkError, BadInputError, RowError, StorageError
from hedgerow_shared.jobs import (
    BulkResult,
    Tally,
    check_job_id,
    consumer_name,
    decode_chunk,
    decode_result,
    tally,
    tally_of,
)
from hedgerow_shared.jobs import encode as encode_message
from hedgerow_shared.ragged import Lane, OutputSpec
from hedgerow_shared.wire import ChunkReply, encode_reply
from hedgerow_shared.wire import decode_chunk as decode_work

SECOND_NS = 1_000_000_000


def part(sequences, ids=None, limits=None):
    encoded = from_ids(sequences, 512)
    names = ids or [f"r{i}" for i in range(len(sequences))]
    cuts = spans(encoded, 16, limits or ChunkLimits())
    return Part(
        job="j",
        model="m",
        fingerprint="f",
        key=part_key(names, encoded, cuts),
        ids=names,
        encoded=encoded,
        output=OutputSpec(dtypes=("int8",), dimensions=(16,)),
        spans=cuts,
        ack_wait_s=15,
    )


# Which row ends workers


def die(last: Attempt | None, killers: set[int], count: int) -> tuple[Attempt, str]:
    """One worker's try, as bulk_suspects makes it: the note it leaves, and how it ended."""
    note = begin(last)
    if not note.by_row:
        return note, "died" if killers else "done"
    for row in range(count):
        if row not in note.given_up:
            note = note.at(row)
            if row in killers:
                return note, "died"
    return note.ended(), "done"


@pytest.mark.parametrize("killers", [{0}, {3}, {7}, {0, 7}, {2, 3, 4}], ids=str)
def test_the_rows_that_end_workers_are_given_up_and_no_others(killers):
    note, end, deaths = None, "died", 0
    while end == "died":
        note, end = die(note, killers, 8)
        deaths += end == "died"
        assert deaths < 20
    assert set(note.given_up) == killers
    assert deaths == 1 + 2 * len(killers)


def test_one_death_by_chance_costs_no_row():
    note = begin(begin(None)).at(3)
    note = begin(note)
    assert note.given_up == [] and note.strikes == {3: 1}
    note, end = die(note.ended(), set(), 8)
    assert end == "done" and note.given_up == []


def test_a_worker_that_stops_in_good_order_is_no_death():
    note = begin(None).ended()
    for _ in range(5):
        note = begin(note).ended()
    assert not note.by_row and note.strikes == {}


def test_a_note_survives_its_encoding():
    note = Attempt(by_row=True, row=4, strikes={4: 1, 2: 2})
    assert decode_attempt(encode_attempt(note)) == note
    with pytest.raises(BadChunkError):
        decode_attempt(b"{")


# Rows -> chunks


def test_the_same_rows_make_the_same_chunks_and_other_rows_do_not():
    one, again = part([[1, 2], [3]]), part([[1, 2], [3]])
    assert list(one.chunks()) == list(again.chunks())
    others = [
        part([[1], [2, 3]]),
        part([[1, 2], [4]]),
        part([[1, 2], [3]], ids=["r0", 1]),
        part([[1, 2], [3]], limits=ChunkLimits(1)),
    ]
    assert len({p.key for p in (one, *others)}) == 5


@given(
    st.lists(st.lists(st.integers(0, 99), min_size=1, max_size=40), min_size=1, max_size=60),
    st.integers(1, 9),
    st.integers(1, 80),
)
def test_chunks_hold_every_row_once_in_order_and_within_the_limits(sequences, most, tokens):
    made = part(sequences, limits=ChunkLimits(most, tokens))
    ids, back = [], []
    for name, data, counts in made.chunks():
        message = decode_chunk(data)
        work = decode_work(message.body)
        batch = work.batch
        assert (message.job, message.chunk) == ("j", name) and work.id == f"j.{name}"
        assert work.lane is Lane.BULK and work.output == OutputSpec("embed", ("int8",), (16,))
        assert batch.num_seqs <= most and (batch.num_tokens <= tokens or batch.num_seqs == 1)
        assert counts == Tally(batch.num_seqs, 0, batch.num_tokens)
        ids += message.ids
        back += [batch.sequence(i).tolist() for i in range(batch.num_seqs)]
    assert (ids, back) == (list(made.ids), sequences)


@pytest.mark.parametrize("reader", [decode_chunk, decode_result])
@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"{}",
        msgpack.packb({}),
        msgpack.packb([1]),
        msgpack.packb({"v": 2, "job": "j"}),
    ],
    ids=["empty", "no msgpack", "json", "empty map", "a list", "another version"],
)
def test_what_is_no_message_of_ours_is_refused(reader, data):
    with pytest.raises(BadChunkError):
        reader(data)


@given(st.binary(max_size=200), st.integers(0, 400), st.integers(0, 255))
def test_no_bytes_make_a_reader_fail_in_another_way(noise, at, byte):
    good = bytearray(next(part([[1, 2, 3]]).chunks())[1])
    good[at % len(good)] = byte
    for data in (noise, bytes(good)):
        for reader in (decode_chunk, decode_result):
            with contextlib.suppress(BadChunkError):
                reader(data)


def test_counts_travel_in_headers():
    counts = tally(ChunkReply("c", "w", [(np.zeros(2, np.float32),), RowError("x")]), 17)
    assert counts == Tally(2, 1, 17) == tally_of(counts.headers)
    for bad in (
        {},
        {**counts.headers, "Hedgerow-Failed": "3"},
        {**counts.headers, "Hedgerow-Rows": "x"},
    ):
        with pytest.raises(BadChunkError):
            tally_of(bad)


@pytest.mark.parametrize("job", ["", "a.b", "a b", "*", ">", "-a", "a" * 65, "ä", "a/b", "a\n"])
def test_a_job_id_that_cannot_be_a_subject_token_is_refused(job):
    with pytest.raises(BadInputError):
        check_job_id(job)


def test_consumers_of_two_models_never_share_a_name():
    tokens = ["a", "A", "a_b", "a-b", "a\\b", "ä", "a=5c=b", "a$b"]
    names = [consumer_name(token) for token in tokens]
    assert len(set(names)) == len(names)
    assert all(c.isascii() and (c.isalnum() or c in "-_=") for name in names for c in name)


# Progress


def feed(events, order=None):
    progress = Progress()
    for event in order or events:
        progress.add(*event)
    return progress


def events(job="j"):
    found = [(subjects.receipt(job, "p"), 1, SECOND_NS, Tally(30, 0, 300))]
    return found + [
        (subjects.result(job, f"p-{n}"), 2 + n, (2 + n) * SECOND_NS, Tally(8, n, 80))
        for n in range(4)
    ]


def test_progress_counts_parts_and_results_apart():
    progress = feed(events())
    assert (progress.submitted, progress.tokens) == (30, 300)
    assert (progress.done, progress.failed, progress.settled) == (26, 6, 32)
    assert (progress.upto, progress.last_ns) == (5, 5 * SECOND_NS)


def test_what_was_counted_is_not_counted_again_whatever_is_read_twice():
    expected = feed(events())
    for cut in range(6):
        progress = decode(encode(feed(events()[:cut])))
        for event in events():
            progress.add(*event)
        assert progress == expected
    assert decode(b"not ours") is None


def test_the_rate_is_of_the_last_ten_seconds_and_falls_to_zero():
    rate = Rate()
    assert rate.per_s(0) == 0.0
    for second in range(100):
        rate.add(second * SECOND_NS, 50)
    assert rate.per_s(99 * SECOND_NS) == pytest.approx(55, abs=6)
    assert rate.per_s(104 * SECOND_NS) == pytest.approx(30, abs=6)
    assert rate.per_s(120 * SECOND_NS) == 0.0


def test_the_age_of_a_stored_message_is_read_from_the_servers_time():
    then = datetime.now(UTC) - timedelta(seconds=100)
    for text in (
        then.strftime("%Y-%m-%dT%H:%M:%S.123456789Z"),
        then.strftime("%Y-%m-%dT%H:%M:%S.5Z"),
        then.strftime("%Y-%m-%dT%H:%M:%SZ"),
    ):
        assert age_s(text) == pytest.approx(100, abs=2)
    assert age_s("2999-01-01T00:00:00Z") == age_s("soon") == 0.0


# Streams


def test_a_stream_with_the_same_settings_is_taken_and_one_with_others_is_named_with_the_remedy():
    options = StreamOptions()
    for config in stream_configs(options):
        refuse_other(config["name"], config, {**config, "compression": "none", "extra": 1})
    bulk = stream_configs(options)[0]
    with pytest.raises(StorageError, match=r"max_bytes=5, wanted is 1073741824.*--bulk-max-bytes"):
        refuse_other("HEDGEROW_BULK", bulk, {**bulk, "max_bytes": 5})
    with pytest.raises(StorageError, match="--bulk-replicas"):
        refuse_other("HEDGEROW_BULK", bulk, {**bulk, "num_replicas": 3})
    with pytest.raises(StorageError, match=r"retention='limits'.*nats stream rm HEDGEROW_BULK"):
        refuse_other("HEDGEROW_BULK", bulk, {**bulk, "retention": "limits"})


# Pages

JOB = Job(
    job="j", model="m", fingerprint="f", dtype="float32", dimensions=0, prompt_name=None, prompt="",
    truncate="end", created_ms=0,
)  # fmt: skip


def stored(seq, rows, names, seen=None):
    message = BulkResult(
        job="j",
        chunk=f"p-{seq}",
        ids=names,
        seen=np.array(seen or [3] * len(rows), "<i4").tobytes(),
        used=np.full(len(rows), 3, "<i4").tobytes(),
        body=encode_reply(ChunkReply("j.c", "w", rows, fingerprint="e1")),
    )
    return Stored(subjects.result("j", f"p-{seq}"), seq, "", encode_message(message))


def page(dtype="float32"):
    arrays = {
        "float32": np.array([0.5, -1.25], np.float32),
        "float16": np.array([0.5, -1.25], np.float16),
        "int8": np.array([-3, 127], np.int8),
        "binary": np.array([129], np.uint8),
    }
    rows = [(arrays[dtype],), RowError("no")]
    results = [
        pages.read(stored(4, rows, ["a", 7], [9, 3])),
        pages.read(stored(6, rows[:1], ["b"])),
    ]
    job = Job(**{f: getattr(JOB, f) for f in JOB.__struct_fields__} | {"dtype": dtype})
    return pages.Page(job, results, 7, 2), arrays[dtype]


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "binary"])
def test_a_page_says_the_same_in_json_base64_and_msgpack(dtype):
    found, array = page(dtype)
    plain = json.loads(b"".join(pages.to_json(found, "float")))
    coded = json.loads(b"".join(pages.to_json(found, "base64")))
    packed = msgpack.unpackb(pages.to_msgpack(found))
    assert plain["results"][0] == {
        "id": "a",
        "embedding": array.tolist(),
        "tokens_seen": 9,
        "tokens_used": 3,
        "truncated": True,
    }
    assert plain["results"][1]["error"] == {"code": "row_failed", "message": "no"}
    assert [item["id"] for item in plain["results"]] == ["a", 7, "b"] == packed["ids"]
    assert base64.b64decode(coded["results"][2]["embedding"]) == array.tobytes()
    matrix = np.frombuffer(packed["data"], array.dtype).reshape(packed["shape"])
    assert matrix.tolist() == [array.tolist(), [0] * len(array), array.tolist()]
    assert [e["index"] for e in packed["errors"]] == [1]
    for head in (plain, coded, packed):
        assert (head["next"], head["pending_chunks"], head["fingerprints"]) == (7, 2, ["e1"])


def test_a_page_cut_short_says_where_to_go_on():
    found, _ = page()
    first = found.first(1)
    assert (first.following, first.pending) == (6, 3)
    assert [r.seq for r in first.results] == [4]


def test_a_page_fits_into_the_answer_it_was_sized_for():
    rng = random.Random(1)
    for encoding in ("float", "base64", None):
        room = 200_000
        budget, results, used = pages.raw_bytes("float32", room, encoding), [], 0
        while used < budget:
            rows = [
                (np.array([rng.uniform(-1, 1) for _ in range(384)], np.float32),)
                for _ in "12345678"
            ]
            message = stored(len(results) + 1, rows, [f"row-{i}" for i in range(8)])
            used += len(message.data)
            results.append(pages.read(message))
        made = pages.Page(JOB, results[:-1], 1, 0)
        if encoding is None:
            size = len(pages.to_msgpack(made))
        else:
            size = sum(map(len, pages.to_json(made, encoding)))
        assert room * 0.6 < size < room


def test_a_stored_message_that_is_no_result_is_refused():
    good = stored(1, [(np.zeros(2, np.float32),)], ["a"])
    for data in (b"", good.data[:-5], stored(1, [(np.zeros(2, np.float32),)], ["a", "b"]).data):
        with pytest.raises(BadChunkError):
            pages.read(Stored(good.subject, 1, "", data))
