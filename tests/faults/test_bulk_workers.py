"""F4, F5 and F12: workers that die with bulk chunks in their hands."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hedgerow_shared import subjects
from hedgerow_shared.bus.jetstream import JetStream
from tests.bulk.bulk_stack import MODEL, Stack, assert_right, rows, vector, word_id
from tests.nats_fixture import NatsHandle

ACK_WAIT_S = 6


@pytest.fixture
def stack(tmp_path: Path, start_nats: Callable[..., NatsHandle]) -> Iterator[Stack]:
    stack = Stack(tmp_path, start_nats().url)
    yield stack
    stack.stop()


@pytest.mark.system
def test_f5_a_worker_that_stands_still_comes_back_and_gives_nothing_twice(stack):
    """Its chunks go to the other one; what it answers when it wakes up is not kept again."""
    stack.gateway("g0", "--bulk-ack-wait-s", "1")
    sleeper, other = (stack.worker(n, "--fake-floor-ms", "50") for n in ("w0", "w1"))
    stack.ready()
    sent = rows(800, length=100)
    stack.accepted("f5", sent)
    stack.all_busy(sleeper, other)
    sleeper.process.send_signal(signal.SIGSTOP)
    stack.until(lambda: stack.status("f5")["done"] == 800, "the other one does it all")
    assert stack.stats(other.name)["bulk_redelivered"] >= 1
    sleeper.process.send_signal(signal.SIGCONT)
    more = [{**row, "id": f"more-{row['id']}"} for row in rows(400, length=100, seed=1)]
    stack.accepted("f5", more, last=True)
    status = stack.complete("f5")
    assert (status["submitted"], status["done"], status["failed"]) == (1200, 1200, 0)
    assert_right(stack.results("f5", limit=10_000), sent + more)
    stack.until(lambda: stack.stats(sleeper.name)["bulk_stored"] > 0, "it works again")
    assert stack.messages(subjects.STREAM_DEAD) == 0


class Supervisor:
    """Starts a worker again whenever it has died, as `hedgerow up` and Kubernetes do."""

    def __init__(self, stack: Stack, *flags: str) -> None:
        self._stack, self._flags = stack, flags
        self.deaths = 0
        self._stop = threading.Event()
        self._worker = stack.worker("w0", *flags)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(0.05):
            if self._worker.process.poll() is not None:
                self.deaths += 1
                self._worker = self._stack.worker(f"w{self.deaths}", *self._flags)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


@pytest.mark.system
def test_f4_a_worker_killed_in_a_batch_costs_time_and_nothing_else(stack):
    """Every result right and once; delivered again is exactly what it had not acknowledged."""
    stack.gateway("g0", "--bulk-ack-wait-s", str(ACK_WAIT_S))
    victim, survivor = (stack.worker(n, "--fake-floor-ms", "50") for n in ("w0", "w1"))
    stack.ready()
    sent = rows(800, length=40)
    stored = stack.accepted("f4", sent, last=True)
    stack.all_busy(victim, survivor)
    victim.kill()
    killed_s = time.monotonic()

    def only_its_own_are_left() -> int:
        before, open_chunks = stack.consumer(), stack.stats(survivor.name)["open_chunks"]
        after = stack.consumer()  # no answer of the survivor's was on its way in between
        still = before["num_ack_pending"] == after["num_ack_pending"]
        idle = after["num_pending"] == 0 and open_chunks == 0
        return after["num_ack_pending"] if still and idle else 0

    lost = stack.until(only_its_own_are_left, "the rest is done", ACK_WAIT_S)
    work_s = time.monotonic() - killed_s
    status = stack.complete("f4")
    took_s = time.monotonic() - killed_s
    assert (status["done"], status["failed"]) == (800, 0)
    assert_right(stack.results("f4", limit=10_000), sent)
    redelivered = stack.consumer()["delivered"]["consumer_seq"] - stored["chunks"]
    assert redelivered == lost == stack.stats(survivor.name)["bulk_redelivered"]
    assert lost >= 1
    assert took_s < ACK_WAIT_S + work_s + 2.0


@pytest.mark.slow
@pytest.mark.parametrize("way", ["kill", "hang"])
def test_f12_a_row_that_ends_workers_is_given_up_and_its_neighbours_are_not(stack, way):
    """The killer's chunk and what else the worker held come again; only the row itself fails."""
    stack.gateway("g0", "--bulk-ack-wait-s", "1")
    flags = (f"--fake-{way}-id", str(word_id("w1500")), "--hung-s", "0.5")
    supervisor = Supervisor(stack, *flags)
    try:
        stack.ready()
        sent = rows(60)
        sent[21]["text"] += " w1500"
        stack.accepted("f12", sent, last=True)
        status = stack.complete("f12", 90.0)
        assert (status["done"], status["failed"]) == (59, 1)
        found = {row["id"]: row for row in stack.results("f12")}
        assert found["r21"]["error"]["code"] == "row_failed"
        assert "died" in found["r21"]["error"]["message"]
        assert_right([r for r in found.values() if r["id"] != "r21"], sent[:21] + sent[22:])
        assert supervisor.deaths == 4, "one in a batch, one with its chunk alone, two by itself"
        assert stack.messages(subjects.STREAM_BULK) == 0, "the queue moved on"
        (letter,) = dead_letters(stack)
        assert letter.subject.startswith(f"hedgerow.dead.{MODEL}.f12.")
        assert "r21" in letter.headers[subjects.HEADER_REASON]
        later = rows(20, seed=1)
        stack.accepted("after", later, last=True)
        stack.complete("after")
        assert_right(stack.results("after"), later)
    finally:
        supervisor.stop()


@pytest.mark.system
def test_f12_a_row_that_raises_fails_alone_and_ends_nobody(stack):
    stack.gateway("g0")
    worker = stack.worker("w0", "--fake-raise-id", str(word_id("w1500")))
    stack.ready()
    sent = rows(48)
    for n in (0, 17, 18):
        sent[n]["text"] += " w1500"
    stack.accepted("raises", sent, last=True)
    status = stack.complete("raises")
    assert (status["done"], status["failed"]) == (45, 3)
    found = {row["id"]: row for row in stack.results("raises")}
    assert {name for name, row in found.items() if "error" in row} == {"r0", "r17", "r18"}
    for row in sent:
        if row["id"] not in ("r0", "r17", "r18"):
            assert found[row["id"]]["embedding"] == pytest.approx(vector(row["text"]).tolist())
    assert worker.process.poll() is None
    assert dead_letters(stack) == []


@pytest.mark.system
def test_f12_what_is_no_chunk_is_a_dead_letter_and_holds_nobody_up(stack):
    stack.gateway("g0")
    stack.worker("w0")
    stack.ready()
    stack.accepted("before", rows(1), last=True)
    subject = subjects.bulk(MODEL, "strange")
    for noise in (b"", b"\xc1 nonsense", b"{}"):
        stack.streams(lambda js, noise=noise: js.publish(subject, noise))
    sent = rows(8)
    stack.accepted("behind", sent, last=True)
    stack.complete("behind")
    assert_right(stack.results("behind"), sent)
    stack.until(lambda: len(dead_letters(stack)) == 3, "three dead letters")
    assert all("not readable" in d.headers[subjects.HEADER_REASON] for d in dead_letters(stack))
    assert stack.messages(subjects.STREAM_BULK) == 0


def dead_letters(stack: Stack) -> list:
    async def read(js: JetStream) -> list:
        info = await js.stream_info(subjects.STREAM_DEAD) or {"state": {"last_seq": 0}}
        return [
            letter
            for seq in range(1, info["state"]["last_seq"] + 1)
            if (letter := await _by_seq(js, seq)) is not None
        ]

    return stack.streams(read)


async def _by_seq(js: JetStream, seq: int):
    return await js.last(subjects.STREAM_DEAD, (await _subject(js, seq)))


async def _subject(js: JetStream, seq: int) -> str:
    found = await js.call(f"STREAM.MSG.GET.{subjects.STREAM_DEAD}", {"seq": seq})
    return found["message"]["subject"]
