"""Every message on a chunk subject gets one answer, and nothing bad gets further."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow_scheduler.intake import Intake, Served, reply_bytes
from hedgerow_scheduler.packer import Policy
from hedgerow_scheduler.replies import Replies
from hedgerow_shared.bus import Message
from hedgerow_shared.errors import HedgerowError, RetryableError
from hedgerow_shared.ragged import Lane, OutputSpec, RaggedBatch
from hedgerow_shared.wire import (
    Chunk,
    ChunkReply,
    decode_reply,
    encode_cancel,
    encode_chunk,
)
from tests.scheduler.conftest import Rig

INBOX = "_INBOX.abc.1"


class Door(Rig):
    """A worker behind an intake: bytes in, decoded replies out."""

    def __init__(self, *, backlog_tokens: int = 2000, limit_bytes: int = 64 * 1024) -> None:
        super().__init__(Policy(budget=512))
        self.age_s = 0.0
        self.sent: list[tuple[str, ChunkReply]] = []
        self.intake = Intake(
            {
                "m": Served(self.engine, 384, frozenset({"engine0", "gw0"})),
                "n": Served(self.other, 384, frozenset({"engine0", "gw1"})),
            },
            self.worker,
            Replies(self.publish, limit_bytes),
            reply_prefixes=("_INBOX",),
            backlog_tokens=backlog_tokens,
            clock=lambda: self.now,
            age_s=lambda: self.age_s,
        )

    def publish(self, subject: str, data: bytes) -> None:
        self.sent.append((subject, decode_reply(data)))

    def send(self, data: bytes, reply: str = INBOX) -> None:
        self.intake.take(Message("hedgerow.chunk.m", data, reply))
        self.loop.run()

    def send_chunk(self, *seqlens: int, reply: str = INBOX, **parts: Any) -> None:
        self.send(encode_chunk(chunk(*seqlens, **parts)), reply)

    @property
    def errors(self) -> list[str]:
        return [r.error.code for _, r in self.sent if r.error is not None]

    def last_error(self) -> HedgerowError:
        error = self.sent[-1][1].error
        assert error is not None
        return error


def chunk(*seqlens: int, output: OutputSpec | None = None, **parts: Any) -> Chunk:
    batch = RaggedBatch.of([np.arange(n) + 1 for n in seqlens], output or OutputSpec())
    return dataclasses.replace(Chunk("c1", "m", Lane.QUERY, 1000.0, batch), **parts)


@pytest.fixture
def door() -> Door:
    return Door()


def test_a_good_chunk_runs_and_is_answered_on_its_reply_subject(door: Door) -> None:
    door.send_chunk(3, 4)
    assert door.engine.steps[0].batch.seqlens.tolist() == [3, 4]
    door.finish(0)
    ((subject, reply),) = door.sent
    assert (subject, reply.id, reply.worker, reply.fingerprint) == (INBOX, "c1", "w0", "engine0")
    assert [int(row[0][0]) for row in reply.rows] == [3, 4]


@pytest.mark.parametrize(
    "reply",
    ["", "hedgerow.v1.embed.m", "$JS.API.STREAM.DELETE.X", "inbox.1", "x._INBOX.1"],
    ids=["none", "a public subject", "the server's own", "lower case", "further inside"],
)
def test_nothing_is_computed_for_or_sent_to_a_subject_outside_the_inboxes(
    door: Door, reply: str
) -> None:
    door.send_chunk(3, reply=reply)
    door.send(b"garbage", reply)
    door.intake.dropped(reply)
    assert (door.sent, door.engine.steps) == ([], [])


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", "invalid_chunk"),
        (b"\xff\x00garbage", "invalid_chunk"),
        (b"[1, 2]", "invalid_chunk"),
        (msgpack.packb({"v": 2}), "invalid_chunk"),
    ],
    ids=["empty", "bytes", "json", "another version"],
)
def test_what_is_not_a_chunk_is_answered_400(door: Door, data: bytes, code: str) -> None:
    door.send(data)
    assert door.errors == [code] and door.last_error().status == 400
    assert door.sent[0][1].id == ""


def test_a_chunk_for_a_model_that_is_not_here_is_answered_404_with_its_id(door: Door) -> None:
    door.send_chunk(3, model="other", id="c9")
    assert door.errors == ["model_not_found"]
    assert door.sent[0][1].id == "c9"


@pytest.mark.parametrize(("fingerprint", "runs"), [("", 1), ("gw0", 1), ("engine0", 1), ("gw1", 0)])
def test_a_chunk_for_another_version_of_the_model_is_sent_elsewhere(
    door: Door, fingerprint: str, runs: int
) -> None:
    door.send_chunk(3, fingerprint=fingerprint)
    assert len(door.engine.steps) == runs
    assert door.errors == ([] if runs else ["no_worker"])


def test_a_sequence_over_the_model_s_limit_is_answered_400_and_one_at_it_runs(door: Door) -> None:
    door.send_chunk(10, 513)
    assert door.errors == ["invalid_chunk"] and "513" in door.last_error().message
    door.send_chunk(512)
    assert len(door.engine.steps) == 1


@pytest.mark.parametrize(
    ("ttl_ms", "age_s", "code"),
    [
        (0.0, 0.0, "deadline_exceeded"),
        (0.4, 0.0005, "deadline_exceeded"),
        (-5.0, 0.0, "invalid_chunk"),
        (float("nan"), 0.0, "invalid_chunk"),
    ],
    ids=["zero", "spent on the way", "negative", "not a number"],
)
def test_a_chunk_without_time_left_is_answered_and_never_runs(
    door: Door, ttl_ms: float, age_s: float, code: str
) -> None:
    door.age_s = age_s
    data = msgpack.unpackb(encode_chunk(chunk(3)))
    door.send(msgpack.packb({**data, "ttl_ms": ttl_ms}))
    assert (door.errors, door.engine.steps) == ([code], [])


def test_a_message_that_waited_while_the_process_stood_still_has_less_time_left(door: Door) -> None:
    door.age_s = 20.0
    door.send_chunk(3, ttl_ms=19_000.0)
    door.send_chunk(4, ttl_ms=30_000.0)
    assert door.errors == ["deadline_exceeded"]
    assert [s.batch.num_tokens for s in door.engine.steps] == [4]


def test_more_than_the_backlog_is_refused_with_the_time_to_come_back(door: Door) -> None:
    for _ in range(3):
        door.send_chunk(512)
    assert door.errors == []
    door.send_chunk(465)
    assert door.errors == ["overloaded"]
    error = door.last_error()
    assert isinstance(error, RetryableError) and 0.05 <= error.retry_after_s <= 30
    assert door.sent[-1][1].backlog_tokens == 1536
    door.send_chunk(464)
    assert door.errors == ["overloaded"], "exactly the limit still fits"


def test_a_chunk_larger_than_the_backlog_is_taken_by_an_idle_worker(door: Door) -> None:
    door.send_chunk(*[512] * 5)
    assert door.errors == [] and len(door.engine.steps) == 2


def test_a_queue_full_of_bulk_still_takes_queries_but_no_more_bulk(door: Door) -> None:
    door.send_chunk(*[512] * 3, lane=Lane.BULK)
    door.send_chunk(512, lane=Lane.BULK)
    assert door.errors == ["overloaded"]
    door.send_chunk(100)
    assert door.errors == ["overloaded"]


def test_messages_the_bus_had_no_room_for_are_answered_429(door: Door) -> None:
    door.intake.dropped(INBOX)
    assert door.errors == ["overloaded"]


def test_cancel_drops_what_waits_and_ignores_what_it_does_not_know(door: Door) -> None:
    door.send_chunk(512, id="a")
    door.send_chunk(512, id="b")
    door.send_chunk(10, id="c")
    door.intake.cancel(Message("hedgerow.worker.w0.cancel", encode_cancel(["c", "zzz"])))
    assert door.errors == ["cancelled"] and door.sent[0][1].id == "c"


@pytest.mark.parametrize("data", [b"", b"\x00", msgpack.packb({"v": 1, "ids": 5})])
def test_a_cancel_message_that_is_garbage_changes_nothing(door: Door, data: bytes) -> None:
    door.send_chunk(10)
    door.intake.cancel(Message("hedgerow.worker.w0.cancel", data))
    assert door.sent == []
    assert door.worker.figures.counts["bad_cancels"] == 1


def test_an_answer_too_large_for_the_bus_is_refused_before_it_is_computed() -> None:
    door = Door(limit_bytes=4000)
    door.send_chunk(5, 5, 5)
    assert door.errors == ["too_large"] and door.last_error().status == 413
    door.send_chunk(5, 5)
    assert len(door.engine.steps) == 1


def test_an_answer_that_turns_out_too_large_becomes_an_error(door: Door) -> None:
    sent: list[bytes] = []
    replies = Replies(lambda subject, data: sent.append(data), 200)
    replies.send(INBOX, ChunkReply("c1", "w0", [(np.zeros(64, np.float32),)]))
    error = decode_reply(sent[0]).error
    assert error is not None and error.code == "too_large" and len(sent[0]) < 400


def test_a_reply_the_bus_cannot_take_is_counted_and_does_not_stop_the_worker() -> None:
    def down(subject: str, data: bytes) -> None:
        raise RetryableError("the send buffer is full")

    replies = Replies(down, 10_000)
    replies.send(INBOX, ChunkReply("c1", "w0"))
    assert replies.lost == 1


ROWS = {
    "plain": (OutputSpec(), [], 2 * 384 * 4),
    "two dtypes": (OutputSpec(dtypes=("float16", "binary")), [], 2 * (768 + 48)),
    "cut": (OutputSpec(dimensions=(64, 128)), [], 2 * 192 * 4),
    "spans": (OutputSpec(), [(1, 0, 2), (1, 2, 4), (1, 4, 5)], 4 * 384 * 4),
    "multivector": (OutputSpec("multivector"), [], 10 * 384 * 4),
    "scores": (OutputSpec("score"), [], 0),
}


@pytest.mark.parametrize("name", ROWS)
def test_the_size_of_an_answer_is_known_from_the_question(name: str) -> None:
    output, spans, expected = ROWS[name]
    asked = chunk(5, 5, output=output)
    batch = dataclasses.replace(asked.batch, spans=np.array(spans, np.int32).reshape(-1, 3))
    assert reply_bytes(dataclasses.replace(asked, batch=batch), 384) == expected


def test_a_chunk_that_asks_for_thousands_of_arrays_costs_nothing(door: Door) -> None:
    many = OutputSpec(dtypes=("float32", "int8", "float16"), dimensions=tuple(range(1, 32)))
    door.send_chunk(5, output=many)
    assert door.errors == ["invalid_chunk"]


MUTATIONS = st.lists(
    st.tuples(st.integers(0, 400), st.integers(0, 255), st.booleans()), min_size=1, max_size=6
)


@settings(max_examples=500, deadline=None)
@given(MUTATIONS)
def test_a_damaged_chunk_is_answered_exactly_once_whatever_was_damaged(
    mutations: list[tuple[int, int, bool]],
) -> None:
    door = Door()
    door.engine.at_once = lambda lazy: lazy.finish()
    door.other.at_once = lambda lazy: lazy.finish()
    data = bytearray(encode_chunk(chunk(3, 4, 5, fingerprint="gw0")))
    for at, value, cut in mutations:
        if cut:
            del data[at % len(data) :]
        if data:
            data[at % len(data)] = value
        else:
            break
    door.send(bytes(data))
    assert len(door.sent) == 1
    assert door.worker.is_idle and door.dead == []


def hand(door: Door, got: list[ChunkReply], *seqlens: int, alone: bool = False, **parts: Any):
    return door.intake.hand_over(chunk(*seqlens, **parts), got.append, alone=alone)


def test_a_chunk_from_this_process_is_answered_there_with_rows_of_its_own(door: Door) -> None:
    got: list[ChunkReply] = []
    assert hand(door, got, 3, 4)
    assert got == [], "never within the call"
    door.loop.run()
    door.finish(0)
    assert [int(row[0][0]) for row in got[0].rows] == [3, 4]
    assert (got[0].id, got[0].worker, got[0].fingerprint) == ("c1", "w0", "engine0")
    assert all(row[0].flags.owndata for row in got[0].rows), "the engine's buffer is used again"
    assert door.sent == []


def test_a_chunk_from_this_process_does_not_wait_where_others_may_be_free(door: Door) -> None:
    got: list[ChunkReply] = []
    assert hand(door, got, 3, id="a")
    assert not hand(door, got, 3, id="b"), "somebody else may be free"
    assert hand(door, got, 4, id="c", alone=True)
    door.loop.run()
    assert door.engine.steps[0].batch.seqlens.tolist() == [3, 4], "one batch"


def test_a_query_from_this_process_minds_the_device_and_no_bulk_that_waits(door: Door) -> None:
    got: list[ChunkReply] = []
    assert hand(door, got, 300, id="bulk", lane=Lane.BULK, alone=True)
    assert not hand(door, got, 3, id="more", lane=Lane.BULK)
    assert hand(door, got, 3, id="passes")
    door.loop.run()
    assert not hand(door, got, 3, id="query"), "it is on the device"


@pytest.mark.parametrize(
    "parts",
    [
        {"model": "other"},
        {"fingerprint": "another version"},
        {"ttl_ms": 0.0},
        {"ttl_ms": float("nan")},
        {"seqlens": (3000,)},
        {"chunks": 4},
    ],
    ids=["model", "version", "late", "no time", "too long", "full"],
)
def test_what_would_be_refused_is_left_to_the_bus_which_says_why(
    door: Door, parts: dict[str, Any]
) -> None:
    got: list[ChunkReply] = []
    seqlens = parts.pop("seqlens", (3,))
    for i in range(parts.pop("chunks", 0)):
        assert hand(door, [], 500, id=f"b{i}", alone=True)
    assert not hand(door, got, *seqlens, alone=True, **parts)
    door.loop.run()
    assert got == []
