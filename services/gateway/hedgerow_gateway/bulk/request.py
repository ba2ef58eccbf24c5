"""Bodies of the bulk routes -> what they ask for. Every wrong field is named in one answer."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from hedgerow_gateway.bodies import kind_name
from hedgerow_gateway.fields import Fields, one_ids, refuse_ids
from hedgerow_gateway.models import Models, ServedModel
from hedgerow_gateway.schema import (
    ENCODINGS,
    Encoding,
    Rules,
    read_model,
    read_prompt,
    read_truncate,
)
from hedgerow_gateway.templates import Prompt
from hedgerow_gateway.tokenizer.assemble import Truncate
from hedgerow_shared.errors import BadInputError
from hedgerow_shared.jobs import MAX_ROW_ID, RowId, check_job_id
from hedgerow_shared.ragged import DTYPES, DType, OutputSpec, width_bytes

MAX_PAGE_ROWS = 10_000
DEFAULT_PAGE_ROWS = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkRequest:
    """`POST /v1/bulk`. Either texts or token_ids holds the rows, in the order of ids; both are
    empty when only `last` is said."""

    model: ServedModel
    job: str
    ids: list[RowId]
    texts: list[str]
    token_ids: list[list[int]]
    dtype: DType
    dimensions: int | None
    truncate: Truncate
    prompt: Prompt
    last: bool

    @property
    def output(self) -> OutputSpec:
        dimensions = () if self.dimensions is None else (self.dimensions,)
        return OutputSpec(dtypes=(self.dtype,), dimensions=dimensions)

    @property
    def row_bytes(self) -> int:
        """Bytes of one vector of the result."""
        return width_bytes(self.dtype, self.dimensions or self.model.card.dimension)


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRequest:
    """`GET /v1/jobs/{job}/results`.

    start: sequence of the first message wanted, as an earlier page's `next` said; 1: the first
    release: everything before `start` was kept by the caller and may be deleted
    """

    job: str
    start: int
    limit: int
    encoding: Encoding
    release: bool


def read_bulk(
    body: Mapping[str, Any], models: Models, rules: Rules, alias: str | None = None
) -> BulkRequest:
    """Raises UnknownModelError, or BadInputError listing every wrong field."""
    fields = Fields(body)
    model = read_model(fields, models, alias)
    if model.card.is_scorer:
        raise BadInputError("this model scores pairs and gives no embeddings", param="model")
    job = fields.text("job") or f"job-{secrets.token_hex(8)}"
    try:
        check_job_id(job)
    except BadInputError as error:
        fields.problems.extend(error.problems)
    last = fields.flag("last")
    ids, texts, token_ids = _rows(fields, model, rules, last)
    full = model.card.dimension
    dtype = cast("DType", fields.choice("dtype", DTYPES, "float32"))
    dimensions = fields.whole("dimensions", 1, full, f"the model gives {full} numbers")
    prompt, truncate = read_prompt(fields, model), read_truncate(fields)
    fields.check()
    return BulkRequest(
        model=model,
        job=job,
        ids=ids,
        texts=texts,
        token_ids=token_ids,
        dtype=dtype,
        dimensions=dimensions,
        truncate=truncate,
        prompt=prompt,
        last=last,
    )


def read_job(body: Mapping[str, Any]) -> str:
    """The job that a path or subject names."""
    job = body.get("job")
    if not isinstance(job, str):
        raise BadInputError("is required: the id of a job", param="job")
    return check_job_id(job)


def read_page(body: Mapping[str, Any]) -> PageRequest:
    """Raises BadInputError listing every wrong field. Numbers may be text, as in a query."""
    job = read_job(body)
    fields = Fields({name: _number(value) for name, value in body.items()})
    start = fields.whole("from", 0, 2**63 - 1, "a sequence: the `next` of the page before")
    limit = fields.whole("limit", 1, MAX_PAGE_ROWS, "rows")
    encoding = fields.choice("encoding_format", ENCODINGS, "float")
    release = fields.flag("release")
    fields.check()
    return PageRequest(
        job=job,
        start=max(start or 1, 1),
        limit=limit or DEFAULT_PAGE_ROWS,
        encoding=cast("Encoding", encoding),
        release=release,
    )


_MAX_DIGITS = 25


def _number(value: Any) -> Any:
    if isinstance(value, str) and value.isascii() and value.isdigit():
        return int(value[:_MAX_DIGITS])  # int() refuses thousands of digits; these are too large
    return {"true": True, "false": False}.get(value, value) if isinstance(value, str) else value


def _rows(
    fields: Fields, model: ServedModel, rules: Rules, last: bool
) -> tuple[list[RowId], list[str], list[list[int]]]:
    rows = fields.body.get("rows")
    if rows in (None, []) and last:
        return [], [], []
    if not isinstance(rows, list) or not rows:
        found = "an empty list" if rows == [] else kind_name(rows)
        fields.bad("rows", f'must be a list of {{"id", "text"}}, found {found}')
        return [], [], []
    if len(rows) > rules.max_inputs:
        fields.bad(
            "rows", f"holds {len(rows)} items; the limit is {rules.max_inputs} (--max-inputs)"
        )
        return [], [], []
    ids: dict[RowId, int] = {}
    native = isinstance(rows[0], Mapping) and "token_ids" in rows[0]
    if native and not rules.native_ids:
        refuse_ids(fields, "rows[0].token_ids")
        return [], [], []
    before, field = len(fields.problems), "token_ids" if native else "text"
    for i, row in enumerate(rows):
        if not isinstance(row, Mapping):
            fields.bad(f"rows[{i}]", f'must be {{"id", "text"}}, found {kind_name(row)}')
            continue
        _id(fields, f"rows[{i}].id", row.get("id"), ids, i)
        value, path = row.get(field), f"rows[{i}].{field}"
        if native:
            one_ids(fields, path, value, model.card.vocab_size)
        elif not isinstance(value, str):
            fields.bad(path, f"must be text, found {kind_name(value)}")
        elif not value:
            fields.bad(path, "is empty")
    if len(fields.problems) > before:
        return [], [], []
    values = [row[field] for row in rows]
    return list(ids), [] if native else values, values if native else []


def _id(fields: Fields, path: str, value: Any, seen: dict[RowId, int], index: int) -> None:
    """Note what is wrong with the name of a row, or that it is `seen`."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        fields.bad(path, f"must be text or a whole number, found {kind_name(value)}")
    elif isinstance(value, str) and not 0 < len(value) <= MAX_ROW_ID:
        fields.bad(path, f"must have 1 to {MAX_ROW_ID} characters, has {len(value)}")
    elif isinstance(value, int) and not -(2**63) <= value < 2**63:
        fields.bad(path, "must fit into 64 bits")
    elif value in seen:
        fields.bad(path, f"is the same as rows[{seen[value]}].id")
    else:
        seen[value] = index
