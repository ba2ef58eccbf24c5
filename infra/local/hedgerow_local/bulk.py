"""`hedgerow bulk FILE --out OUT`: a file of texts through the bulk lane, and its vectors back.

Rows go out and results come in at the same time. What was written is noted beside the output
(OUT.state) before the server is told that it may forget it, so the same command goes on where
an earlier one was stopped.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import IO, Any

from hedgerow_shared import subjects
from hedgerow_shared.bus import Bus, BusOptions
from hedgerow_shared.errors import HedgerowError, StartupError

_PART_ROWS, _PART_BYTES = 256, 256 * 1024
_PARTS_AT_ONCE = 4
_PATIENCE_S = 30.0
_LOOK_S = 0.5
_AGAIN = (429, 503, 504)


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkOptions:
    """file: JSONL with an id and a text in each line; out: JSONL, or .npz with ids and vectors"""

    file: Path
    out: Path
    model: str
    job: str = ""
    id_field: str = "id"
    text_field: str = "text"
    dtype: str = "float32"
    dimensions: int = 0
    prompt_name: str = ""

    @property
    def job_id(self) -> str:
        """The one given, else one that the same file and wishes lead to again."""
        if self.job:
            return self.job
        facts = self.file.stat()
        wishes = [str(self.file.resolve()), facts.st_size, facts.st_mtime_ns, self.model]
        wishes += [self.dtype, self.dimensions, self.prompt_name, self.id_field, self.text_field]
        return f"file-{blake2b(json.dumps(wishes).encode(), digest_size=8).hexdigest()}"


@dataclass(slots=True)
class State:
    """How far it went: rows acknowledged, the next page, bytes of the output that are good, and
    which versions of the model its vectors are of (one, unless workers were changed)."""

    job: str
    sent: int = 0
    next: int = 1
    bytes: int = 0
    good: int = 0
    failed: int = 0
    fingerprints: list[str] = field(default_factory=list[str])

    @classmethod
    def read(cls, path: Path, job: str) -> State:
        try:
            found = cls(**json.loads(path.read_text("utf-8")))
        except (OSError, ValueError, TypeError):
            return cls(job)
        return found if found.job == job else cls(job)

    def write(self, path: Path) -> None:
        """Replace the note in one step."""
        fresh = path.with_suffix(".tmp")
        with fresh.open("w", encoding="utf-8") as file:
            file.write(json.dumps(asdict(self)))
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)


Report = Callable[[Mapping[str, Any]], None]


async def bulk(options: BulkOptions, bus_options: BusOptions, report: Report) -> State:
    """Send, wait, write; returns the counts. `report` gets the job's status now and then.

    Raises StartupError for a file that cannot be used or a job that was refused.
    """
    work = options.out.with_name(options.out.name + ".part")
    note = options.out.with_name(options.out.name + ".state")
    state = State.read(note, options.job_id)
    bus = await Bus.connect(bus_options)
    try:
        with work.open("r+b" if state.bytes and work.exists() else "w+b") as out:
            out.truncate(state.bytes)
            out.seek(state.bytes)
            run = _Run(options, bus, state, note, out, report)
            sending = asyncio.ensure_future(run.send())
            collecting = asyncio.ensure_future(run.collect())
            tasks: set[asyncio.Future[None]] = {sending, collecting}
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
                for task in tasks:
                    if task.done():
                        task.result()
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
    finally:
        await bus.close(patience_s=0.5)
    _finish(options, work)
    note.unlink(missing_ok=True)
    return state


class _Run:
    """Both directions of one job."""

    def __init__(
        self,
        options: BulkOptions,
        bus: Bus,
        state: State,
        note: Path,
        out: IO[bytes],
        report: Report,
    ) -> None:
        self._options, self._bus, self._report = options, bus, report
        self._state, self._note, self._out = state, note, out

    async def send(self) -> None:
        parts = _parts(self._options, skip=self._state.sent)
        while window := list(islice(parts, _PARTS_AT_ONCE)):
            await asyncio.gather(*(self._submit({"rows": rows}) for rows in window))
            self._state.sent += sum(map(len, window))
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
            self._state.write(self._note)

    async def _pages(self) -> AsyncIterator[dict[str, Any]]:
        """Every page with rows, until the job is complete and all of it was read."""
        job, complete = self._state.job, False
        encoding = "base64" if self._options.out.suffix == ".npz" else "float"
        while True:
            body = {"from": self._state.next, "release": True, "encoding_format": encoding}
            page = await self._ask(subjects.job("results", job), body, missing_ok=True)
            if page is not None and page["results"]:
                yield page
            if page is not None and page["pending_chunks"]:
                continue
            if complete:
                return
            status = await self._ask(subjects.job("status", job), {}, missing_ok=True)
            if status is not None:
                self._report(status)
                complete = status["state"] == "complete"
                if status["state"] == "cancelled":
                    raise StartupError(f"job {job} was cancelled")
            if not complete:
                await asyncio.sleep(_LOOK_S)

    async def _submit(self, body: dict[str, Any]) -> None:
        options = self._options
        wishes = {
            "job": self._state.job,
            "dtype": options.dtype,
            "dimensions": options.dimensions or None,
            "prompt_name": options.prompt_name or None,
        }
        await self._ask(subjects.submit_bulk(options.model), {**wishes, **body})

    async def _ask(
        self, subject: str, body: Mapping[str, Any], *, missing_ok: bool = False
    ) -> dict[str, Any] | None:
        """The answer; asks again while the system is full or away. missing_ok: None for a 404."""
        data, delay_s = json.dumps(body).encode(), 0.1
        while True:
            try:
                reply = await self._bus.request(subject, data, timeout_s=_PATIENCE_S)
            except HedgerowError as error:
                if not error.retryable:
                    raise StartupError(f"{subject}: {error.message}") from None
                status, text = error.status, error.message
            else:
                code = reply.headers.get(subjects.HEADER_ERROR_CODE)
                if code is None:
                    return json.loads(reply.data)
                status, text = int(code), reply.headers.get(subjects.HEADER_ERROR, "")
            if status == 404 and missing_ok:
                return None
            if status not in _AGAIN:
                raise StartupError(f"refused ({status}): {text}")
            self._report({"state": f"waiting ({text})"})
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, 5.0)


def _parts(options: BulkOptions, *, skip: int) -> Iterator[list[dict[str, Any]]]:
    """Rows in the parts they are sent in: the same ones whenever the file is read.

    Raises StartupError naming the line that is no row.
    """
    rows: list[dict[str, Any]] = []
    size = seen = 0
    with options.file.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            if rows and (len(rows) >= _PART_ROWS or size + len(line) > _PART_BYTES):
                seen += len(rows)
                if seen > skip:
                    yield rows
                rows, size = [], 0
            rows.append(_row(options, number, line))
            size += len(line)
    if rows and seen + len(rows) > skip:
        yield rows


def _row(options: BulkOptions, number: int, line: bytes) -> dict[str, Any]:
    where = f"{options.file}, line {number}"
    try:
        found = json.loads(line)
    except ValueError as error:
        raise StartupError(f"{where}: not JSON ({error})") from None
    text = found.get(options.text_field) if isinstance(found, dict) else None
    if not isinstance(text, str):
        raise StartupError(f"{where}: no text under {options.text_field!r} (--text-field)")
    return {"id": found.get(options.id_field, number), "text": text or " "}


def _finish(options: BulkOptions, work: Path) -> None:
    """The output gets its name once it is whole."""
    if options.out.suffix != ".npz":
        work.replace(options.out)
        return
    import numpy as np

    names: list[Any] = []
    vectors: list[Any] = []
    kind = {"float16": "<f2", "int8": "|i1", "binary": "|u1"}.get(options.dtype, "<f4")
    with work.open("rb") as lines:
        for line in lines:
            row = json.loads(line)
            if "error" in row:
                sys.stderr.write(f"hedgerow: row {row['id']}: {row['error']['message']}\n")
                continue
            names.append(row["id"])
            vectors.append(np.frombuffer(base64.b64decode(row["embedding"]), kind))
    with options.out.open("wb") as file:
        np.savez(file, ids=np.array(names), vectors=np.array(vectors))
    work.unlink()
