"""What `hedgerow bulk` was asked for, and the lines of its file as rows to send."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from hedgerow_shared import subjects
from hedgerow_shared.errors import BadInputError, StartupError
from hedgerow_shared.jobs import MAX_ROW_ID, check_job_id

_ROW = re.compile(r"rows\[(\d+)\](?:\.(\w+))?")
_PART_ROWS, _PART_BYTES = 256, 256 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkOptions:
    """file: JSONL with an id and a text in each line; out: JSONL, or .npz with ids and vectors

    job: the job's name; "" for a new one that nobody else has
    """

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
    def part(self) -> Path:
        """Where results are collected until all are there."""
        return self.out.with_name(self.out.name + ".part")

    @property
    def note(self) -> Path:
        """How far an unfinished run came."""
        return self.out.with_name(self.out.name + ".state")

    @property
    def fresh(self) -> Path:
        """A file that takes the place of another one once it is whole."""
        return self.out.with_name(self.out.name + ".tmp")

    @property
    def digest(self) -> str:
        """Equal for the same wishes about the same file, which is one that nobody wrote to."""
        facts = self.file.stat()
        wishes = [str(self.file.resolve()), facts.st_size, facts.st_mtime_ns, self.model, self.job]
        wishes += [self.dtype, self.dimensions, self.prompt_name, self.id_field, self.text_field]
        return blake2b(json.dumps(wishes).encode(), digest_size=8).hexdigest()

    def check(self) -> None:
        """Raises StartupError for what can be seen to fail before anything is sent."""
        try:
            if self.job:
                check_job_id(self.job)
        except BadInputError as error:
            raise StartupError(f"--job {self.job!r} {error.message}") from None
        subjects.check_aliases([self.model])
        if not self.file.is_file():
            found = "not a file that can be read again" if self.file.exists() else "no such file"
            raise StartupError(f"{self.file}: {found}")
        _check_place(self.out)
        for place in (self.out, self.part, self.note, self.fresh):
            if place.exists() and place.samefile(self.file):
                raise StartupError(
                    f"--out {self.out}: {place} is the input itself; name another file"
                )


@dataclass(frozen=True, slots=True)
class Part:
    """Rows that are sent together, and the line of the file that each came from."""

    rows: list[dict[str, Any]]
    lines: list[int]

    @property
    def where(self) -> str:
        return f"lines {self.lines[0]} to {self.lines[-1]}"


def parts(options: BulkOptions, *, skip: int) -> Iterator[Part]:
    """Rows in the parts they are sent in: the same ones whenever the file is read, but for those
    among the first `skip` rows.

    Raises StartupError naming the line that is no row, or a part that repeats another one: the
    server would take it for the same part sent again.
    """
    seen, known = 0, dict[bytes, Part]()
    for part in _cut(options):
        _refuse_twins(options, part)
        key = blake2b(json.dumps(part.rows).encode(), digest_size=16).digest()
        first = known.setdefault(key, Part([], part.lines))
        if first.lines is not part.lines:
            raise StartupError(
                f"{options.file}, {part.where}: the same ids and texts as {first.where}; "
                "leave them out, or give each row an id of its own"
            )
        seen += len(part.rows)
        if seen > skip:
            yield part


def in_the_file(text: str, options: BulkOptions, part: Part | None) -> str:
    """A refusal of a part, with the lines and fields of the file it was made from."""
    if part is None or not _ROW.search(text):
        return text
    fields = {"id": options.id_field, "text": options.text_field}

    def place(found: re.Match[str]) -> str:
        field = found[2] and f" ({fields.get(found[2], found[2])})"
        return f"line {part.lines[int(found[1])]}{field or ''}"

    text = _ROW.sub(place, text).replace(", see detail)", ")")
    return f"{options.file}: {text}"


def _check_place(out: Path) -> None:
    if out.is_dir() or not out.name:
        raise StartupError(f"--out {out}: a folder; name a file in it")
    if out.exists() and not out.is_file():
        raise StartupError(f"--out {out}: not a regular file; name one, it is written in place")
    if not out.parent.is_dir():
        raise StartupError(f"--out {out}: no folder {out.parent}; make it, or name another")


def _refuse_twins(options: BulkOptions, part: Part) -> None:
    lines: dict[str | int, int] = {}
    for row, line in zip(part.rows, part.lines, strict=True):
        first = lines.setdefault(row["id"], line)
        if first != line:
            raise StartupError(
                f"{options.file}, line {line}: {options.id_field!r} is {row['id']!r}, as in line "
                f"{first}; give each row an id of its own"
            )


def _cut(options: BulkOptions) -> Iterator[Part]:
    part, size = Part([], []), 0
    with options.file.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            if part.rows and (len(part.rows) >= _PART_ROWS or size + len(line) > _PART_BYTES):
                yield part
                part, size = Part([], []), 0
            part.rows.append(_row(options, number, line))
            part.lines.append(number)
            size += len(line)
    if part.rows:
        yield part


def _row(options: BulkOptions, number: int, line: bytes) -> dict[str, Any]:
    where = f"{options.file}, line {number}"
    try:
        found = json.loads(line)
    except ValueError as error:
        raise StartupError(f"{where}: not JSON ({error})") from None
    except RecursionError:
        raise StartupError(f"{where}: nested too deeply; write one flat object a line") from None
    text = found.get(options.text_field) if isinstance(found, dict) else None
    if not isinstance(text, str):
        raise StartupError(f"{where}: no text under {options.text_field!r} (--text-field)")
    name = found.get(options.id_field, number)
    if not _is_row_id(name):
        raise StartupError(
            f"{where}: {options.id_field!r} (--id-field) must be text of 1 to {MAX_ROW_ID} "
            "characters or a whole number of 64 bits"
        )
    for value in (name, text):
        if isinstance(value, str) and not _is_unicode(value):
            raise StartupError(f"{where}: half of a surrogate pair, which is not Unicode")
    return {"id": name, "text": text or " "}


def _is_row_id(value: object) -> bool:
    if isinstance(value, str):
        return 0 < len(value) <= MAX_ROW_ID
    return type(value) is int and -(2**63) <= value < 2**63


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
