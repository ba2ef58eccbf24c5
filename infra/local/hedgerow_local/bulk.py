"""`hedgerow bulk FILE --out OUT`: a file of texts through the bulk lane, and its vectors back.

Rows go out and results come in at the same time. What was written is noted beside the output
(OUT.state) before the server is told that it may forget it, so the same command goes on where
an earlier one was stopped. The output is replaced only by one result for each row that was sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import sys
from collections.abc import AsyncIterator
from itertools import islice
from typing import IO, Any

from hedgerow_local.bulknote import State, go_on, open_part
from hedgerow_local.bulkout import finish
from hedgerow_local.bulkrows import BulkOptions, Part, in_the_file, parts
from hedgerow_local.bulkserver import Report, Server
from hedgerow_shared import subjects
from hedgerow_shared.bus import Bus, BusOptions
from hedgerow_shared.errors import StartupError

_PARTS_AT_ONCE = 4
_LOOK_S = 0.5
_OWN_NAME = "file-"


async def bulk(options: BulkOptions, bus_options: BusOptions, report: Report) -> State:
    """Send, wait, write; returns the counts. `report` gets the job's status now and then.

    Raises StartupError for a file that cannot be used or a job that was refused.
    """
    try:
        options.check()
        with open_part(options) as part:
            state = State.read(options)
            if state is None:
                await _check_rows(options)
            else:
                go_on(part, options, state.bytes)
            bus = await Bus.connect(bus_options)
            try:
                server = Server(bus, report)
                await _check_model(options, server)
                state = state or State(options.job or _new_name(), options.digest)
                run = _Run(options, server, state, part)
                await _begin(options, server, run, state)
                go_on(part, options, state.bytes)
                await _together(run)
            finally:
                await bus.close(patience_s=0.5)
            _check_count(options, state)
            finish(options)
            options.note.unlink(missing_ok=True)
    except OSError as error:
        where = error.filename or options.part
        raise StartupError(
            f"{where}: {error.strerror or error}; once that is mended, the same command goes on"
        ) from None
    return state


async def _check_rows(options: BulkOptions) -> None:
    """Raises StartupError for a line that is no row: the last one too, before hours of work."""
    for _ in parts(options, skip=0):
        await asyncio.sleep(0)  # Ctrl-C comes through here


async def _check_model(options: BulkOptions, server: Server) -> None:
    """Raises StartupError for an alias that no gateway has; waits for the first gateway."""
    listed = await server.ask(subjects.MODELS, {})
    aliases = [entry["id"] for entry in listed["data"]] if listed else []
    wanted = subjects.model_token(options.model)
    if wanted in map(subjects.model_token, aliases):
        return
    # Gateways need not serve the same models, and only one of them has answered.
    if not await server.is_heard(subjects.submit_bulk(options.model)):
        raise StartupError(
            f"--model {options.model}: nobody serves that; there is {', '.join(aliases)}"
        )


def _new_name() -> str:
    return f"{_OWN_NAME}{secrets.token_hex(8)}"


async def _begin(options: BulkOptions, server: Server, run: _Run, state: State) -> None:
    """Have a job that is noted. Raises StartupError for one whose results may be elsewhere.

    A new one is noted once the server took its first part: a mistake in the flags must not cost
    what another command has collected.
    """
    if not state.sent:
        if options.job:
            await _refuse_known(options, server)
        await run.send_first()
        await _leave_other(options, server)
        state.write(options)
    elif not await server.status(state.job):
        raise StartupError(
            f"job {state.job}, which {options.note} is of, is not known there (another server, or "
            f"its storage is gone): remove {options.note} to compute all again"
        )


async def _leave_other(options: BulkOptions, server: Server) -> None:
    """Cancel the job of a note for another file or other flags: nobody will fetch its results.
    One that a person has named may be fetched by others, and goes on."""
    other = State.read_any(options)
    if other is None:
        return
    what = f"hedgerow: {options.note} was of another file or of other flags: began again"
    if other.job.startswith(_OWN_NAME):
        with contextlib.suppress(StartupError):  # finished or expired: nothing is left to stop
            found = await server.ask(subjects.job("cancel", other.job), {}, missing_ok=True)
            if found and found["state"] == "cancelled":
                what += f"; job {other.job} is cancelled"
    sys.stderr.write(f"{what}\n")


async def _refuse_known(options: BulkOptions, server: Server) -> None:
    found = await server.status(options.job)
    if found is None:
        return
    raise StartupError(
        f"--job {options.job} exists already ({found['state']}, {found['done']} done, "
        f"{found['failed']} failed), and {options.note} does not say which results were fetched: "
        "use --job with another name, or none, to compute again"
    )


async def _together(run: _Run) -> None:
    """Both directions until both are done, or until the first failure of either."""
    tasks: set[asyncio.Future[None]] = {
        asyncio.ensure_future(run.send()),
        asyncio.ensure_future(run.collect()),
    }
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in tasks:
            if task.done():
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _check_count(options: BulkOptions, state: State) -> None:
    came = state.good + state.failed
    if came < state.sent:
        raise StartupError(
            f"job {state.job}: {state.sent} rows were sent and {came} results came; what came is "
            f"in {options.part}, {options.out} is as it was: remove {options.note} to compute all "
            "again" + " under another --job" * bool(options.job)
        )


class _Run:
    """Both directions of one job."""

    def __init__(self, options: BulkOptions, server: Server, state: State, out: IO[bytes]) -> None:
        self._options, self._server, self._state, self._out = options, server, state, out

    async def send_first(self) -> None:
        for part in islice(parts(self._options, skip=0), 1):
            await self._submit({"rows": part.rows}, part)
            self._state.sent = len(part.rows)

    async def send(self) -> None:
        left = parts(self._options, skip=self._state.sent)
        while window := list(islice(left, _PARTS_AT_ONCE)):
            await asyncio.gather(*(self._submit({"rows": part.rows}, part) for part in window))
            self._state.sent += sum(len(part.rows) for part in window)
        await self._submit({"last": True})

    async def collect(self) -> None:
        async for page in self._pages():
            for row in page["results"]:
                self._out.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
                self._state.failed += "error" in row
                self._state.good += "error" not in row
            known = {*self._state.fingerprints, *page["fingerprints"]}
            self._state.fingerprints = sorted(known)
            self._out.flush()
            os.fsync(self._out.fileno())
            self._state.next, self._state.bytes = page["next"], self._out.tell()
            self._state.write(self._options)

    async def _pages(self) -> AsyncIterator[dict[str, Any]]:
        """Every page with rows, until the job is complete and all of it was read."""
        job, complete = self._state.job, False
        encoding = "base64" if self._options.out.suffix == ".npz" else "float"
        while True:
            body = {"from": self._state.next, "release": True, "encoding_format": encoding}
            page = await self._server.ask(subjects.job("results", job), body, missing_ok=True)
            if page is not None and page["results"]:
                yield page
            elif page is not None:
                self._state.next = page["next"]
            if page is not None and page["pending_chunks"]:
                continue
            if complete:
                return
            status = await self._server.status(job)
            if status is not None:
                self._server.report(status)
                complete = status["state"] == "complete"
                if status["state"] == "cancelled":
                    raise StartupError(
                        f"job {job} was cancelled: remove {self._options.note} to begin again"
                    )
            if not complete:
                await asyncio.sleep(_LOOK_S)

    async def _submit(self, body: dict[str, Any], part: Part | None = None) -> None:
        options = self._options
        wishes = {
            "job": self._state.job,
            "dtype": options.dtype,
            "dimensions": options.dimensions or None,
            "prompt_name": options.prompt_name or None,
        }
        subject = subjects.submit_bulk(options.model)
        await self._server.ask(
            subject, {**wishes, **body}, explain=lambda text: in_the_file(text, options, part)
        )
