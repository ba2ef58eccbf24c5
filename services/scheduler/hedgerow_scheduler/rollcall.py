"""Before a worker joins: do those that serve the same model compute the same?"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec
import numpy as np

from hedgerow_scheduler.canary import Canary
from hedgerow_shared import subjects
from hedgerow_shared.bus import Bus, Message
from hedgerow_shared.errors import RetryableError, StartupError
from hedgerow_shared.subjects import is_inbox

VERSION = 1
_ANSWERS_S, _STARTING_S = 0.5, 0.1
_log = logging.getLogger("hedgerow.worker")


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """One worker's canary of one model, as it travels.

    serving: False while the worker is still about to join
    rows: float32, little-endian, C order; shape [num_rows, width]
    """

    v: int = VERSION
    worker: str
    serving: bool
    fingerprint: str
    rows: bytes
    shape: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Entry:
    """What this worker has to show for one model."""

    fingerprint: str
    canary: Canary


class RollCall:
    """Asks the fleet before this worker joins, and answers those that come later.

    `check` asks twice: at first nobody may listen, which costs nothing; then, once this one answers
    too, again, so that of two that start in the same instant at least one sees the other.
    """

    def __init__(
        self, bus: Bus, worker: str, entries: Mapping[str, Entry], *, allow_mixed: bool
    ) -> None:
        self._bus, self._worker, self._entries = bus, worker, entries
        self._allow_mixed = allow_mixed
        self.serving = False

    async def check(self) -> None:
        """Raises StartupError (one line) when this worker must not join; else it may."""
        for alias in self._entries:
            await self._compare(alias, _ANSWERS_S)
        for alias, entry in self._entries.items():
            await self._bus.subscribe(subjects.canary(alias), self._answerer(entry))
        await self._bus.barrier()
        for alias in self._entries:
            await self._compare(alias, _STARTING_S)

    def _answerer(self, entry: Entry) -> Callable[[Message], None]:
        def answer(message: Message) -> None:
            if not is_inbox(message.reply):
                return
            rows = entry.canary.rows
            report = Report(
                worker=self._worker,
                serving=self.serving,
                fingerprint=entry.fingerprint,
                rows=rows.astype("<f4").tobytes(),
                shape=(rows.shape[0], rows.shape[1]),
            )
            try:
                self._bus.publish_nowait(message.reply, msgspec.msgpack.encode(report))
            except RetryableError as error:
                _log.warning("roll call: no answer: %s", error.message)

        return answer

    async def _compare(self, alias: str, wait_s: float) -> None:
        replies = await self._bus.request_many(subjects.canary(alias), b"", timeout_s=wait_s)
        for reply in replies:
            report = _read(reply.data)
            if report is None or report.worker == self._worker:
                continue
            # Of two that are about to join, the one with the smaller name goes first.
            if not report.serving and report.worker > self._worker:
                continue
            reason = conflict(alias, self._entries[alias], report)
            if reason and not self._allow_mixed:
                raise StartupError(reason)
            if reason:
                _log.warning("joining a mixed fleet, as asked: %s", reason)


def conflict(alias: str, ours: Entry, theirs: Report) -> str:
    """Why these two must not serve one model together; "" when they may."""
    rows = np.frombuffer(theirs.rows, "<f4").reshape(theirs.shape)
    likeness, gate = ours.canary.likeness(rows), ours.canary.gate
    close = likeness >= gate
    overrule = "or give --allow-mixed-fleet"
    if theirs.fingerprint == ours.fingerprint:
        if close:
            return ""
        return (
            f"model {alias}: this machine or that of worker {theirs.worker} computes wrongly: one "
            f"fingerprint ({ours.fingerprint}), other vectors (canary {likeness:.5f}, {gate} is "
            f"needed); update or replace the one that is wrong, {overrule}"
        )
    why = (
        "the same weights in other numbers: start all with one --dtype, --device and --cpu-executor"
        if close
        else "other weights or pooling: start all from one model folder, or take another alias"
    )
    return (
        f"model {alias}: worker {theirs.worker} serves fingerprint {theirs.fingerprint}, this one "
        f"has {ours.fingerprint} (canary {likeness:.5f}): {why}, {overrule}"
    )


def _read(data: bytes) -> Report | None:
    try:
        report = msgspec.msgpack.decode(data, type=Report)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        _log.warning("roll call: an answer is not readable: %s", error)
        return None
    fits = len(report.rows) == 4 * report.shape[0] * report.shape[1] and min(report.shape) > 0
    if report.v != VERSION or not fits:
        _log.warning("roll call: worker %s answers in another way: not compared", report.worker)
        return None
    return report
