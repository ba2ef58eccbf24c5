"""Before a worker joins: do those that serve the same model compute the same?"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import msgspec
import numpy as np

from hedgerow_scheduler.canary import Canary
from hedgerow_shared import subjects
from hedgerow_shared.bus import Bus, Message
from hedgerow_shared.errors import RetryableError, StartupError
from hedgerow_shared.subjects import is_inbox

VERSION = 1
_ANSWERS_S, _STARTING_S = 0.5, 0.1
_LATE_S = 10.0
"""How long answers count: a busy machine's are late, and joining must not wait for them."""

_log = logging.getLogger("hedgerow.worker")


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """One worker's canary of one model, as it travels.

    serving: False while the worker is about to join, or has joined and still hears late answers
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

    `check` asks twice. First when this one does not answer yet: whoever says anything then was
    here before it. Then once it answers, too, and with its own report in the question: so of two
    that start in the same instant the second to ask shows itself to the first and sees it, and
    the smaller name stays. Answers and questions of a machine that is busy or stands still may
    come when this worker has joined: they count for `_LATE_S`, see `on_late`.
    """

    def __init__(
        self,
        bus: Bus,
        worker: str,
        entries: Mapping[str, Entry],
        *,
        allow_mixed: bool,
        on_late: Callable[[], None],
    ) -> None:
        """on_late: called once when something that came after `check` says that this worker must
        not serve; `reason` then tells what"""
        self._bus, self._worker, self._entries = bus, worker, entries
        self._allow_mixed, self._on_late = allow_mixed, on_late
        self._open: set[asyncio.Task[None]] = set()
        self._checked = self._settled = False
        self.reason = ""
        """Why this worker must not serve, in one line; "" as long as nothing speaks against it."""

    async def check(self) -> None:
        """Raises StartupError (`reason`) when this worker must not join; else it may."""
        await self._ask(_ANSWERS_S, here_before=True)
        for alias in self._entries:
            await self._bus.subscribe(subjects.canary(alias), self._answerer(alias))
        await self._bus.barrier()
        self._refuse()
        await self._ask(_STARTING_S, here_before=False)
        self._checked = True
        self._settled = not self._open

    def close(self) -> None:
        """Hear no more answers."""
        for asking in self._open:
            asking.cancel()

    def _answerer(self, alias: str) -> Callable[[Message], None]:
        def answer(message: Message) -> None:
            if not is_inbox(message.reply):
                return
            if message.data and not self._settled:
                self._weigh(alias, message, here_before=False)
            # Who is about to leave must not send anybody else away.
            if self.reason:
                return
            try:
                self._bus.publish_nowait(message.reply, self._report(alias))
            except RetryableError as error:
                _log.warning("roll call: no answer: %s", error.message)

        return answer

    def _report(self, alias: str) -> bytes:
        entry = self._entries[alias]
        rows = entry.canary.rows
        report = Report(
            worker=self._worker,
            serving=self._settled,
            fingerprint=entry.fingerprint,
            rows=rows.astype("<f4").tobytes(),
            shape=(rows.shape[0], rows.shape[1]),
        )
        return msgspec.msgpack.encode(report)

    def _weigh(self, alias: str, message: Message, *, here_before: bool) -> bool:
        """Look at the report of another; True when nothing more can change what follows."""
        if not self.reason:
            self.reason = self._against(alias, message, here_before)
            if self.reason and self._checked:
                self._on_late()
        return bool(self.reason)

    async def _ask(self, wait_s: float, *, here_before: bool) -> None:
        """Ask for every model, and wait a moment; who has not answered by then is still heard."""
        asked = [asyncio.create_task(self._hear(alias, here_before)) for alias in self._entries]
        self._open.update(asked)
        for asking in asked:
            asking.add_done_callback(self._heard)
        done, _ = await asyncio.wait(asked, timeout=wait_s, return_when=asyncio.FIRST_EXCEPTION)
        self._refuse()
        for asking in done:
            asking.result()

    def _refuse(self) -> None:
        if self.reason:
            self.close()
            raise StartupError(self.reason)

    async def _hear(self, alias: str, here_before: bool) -> None:
        await self._bus.request_many(
            subjects.canary(alias),
            b"" if here_before else self._report(alias),
            timeout_s=_LATE_S,
            is_last=partial(self._weigh, alias, here_before=here_before),
        )

    def _heard(self, asking: asyncio.Task[None]) -> None:
        self._open.discard(asking)
        if not asking.cancelled() and asking.exception() is not None:
            _log.debug("roll call: no more answers: %s", asking.exception())
        self._settled = self._checked and not self._open

    def _against(self, alias: str, message: Message, here_before: bool) -> str:
        report = _read(message.data)
        if report is None or report.worker == self._worker:
            return ""
        # Of two that came at once, and neither before the other, the smaller name stays.
        if not (here_before or report.serving) and report.worker > self._worker:
            return ""
        reason = conflict(alias, self._entries[alias], report)
        if reason and self._allow_mixed:
            _log.warning("joining a mixed fleet, as asked: %s", reason)
            return ""
        return reason


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
