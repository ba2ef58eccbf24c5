"""Rerank: pairs through a cross-encoder, or cosines of an embedder's vectors."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from hedgerow_gateway import answers
from hedgerow_gateway.bodies import encode
from hedgerow_gateway.call import Call
from hedgerow_gateway.core import Core, check_fit
from hedgerow_gateway.failures import check_rows
from hedgerow_gateway.schema import RerankRequest, read_rerank
from hedgerow_gateway.templates import prompt_for
from hedgerow_gateway.tokenizer.encoded import Encoded, from_ids, join
from hedgerow_shared.errors import HedgerowError
from hedgerow_shared.ragged import Lane, OutputSpec, Row

Scores = npt.NDArray[np.float32]


class Rerank:
    """The rerank use case on top of the core."""

    def __init__(self, core: Core, gateway_id: str) -> None:
        self._core = core
        self._ids = (f"rerank-{gateway_id}-{n:x}" for n in itertools.count(1))

    async def serve(self, body: Mapping[str, Any], call: Call) -> tuple[str, list[bytes]]:
        """Raises HedgerowError of every kind; see docs/protocol.md."""
        request = read_rerank(body, self._core.models, self._core.rules, call.alias)
        self._core.check_room(request.model, Lane.BULK if call.bulk else Lane.RERANK)
        score = self._pairs if request.model.card.is_scorer else self._cosines
        encoded, scores, failed, fingerprint = await score(request, call)
        reply = answers.rerank_body(
            request, encoded, scores, failed, fingerprint, request_id=next(self._ids)
        )
        return request.model.alias, [encode(reply, call.form)]

    async def _cosines(
        self, request: RerankRequest, call: Call
    ) -> tuple[Encoded, Scores, list[tuple[int, HedgerowError]], str]:
        """Query and documents as vectors, each under its own prompt; the cosine is ours."""
        model = request.model
        encoded = join([await self._query(request), await self._documents(request)])
        lane = Lane.BULK if call.bulk else Lane.RERANK
        done = await self._core.run(
            model, encoded, OutputSpec(), lane, reply_bytes=model.card.dimension * 4, call=call
        )
        query, rows = done.rows[0], done.rows[1:]
        if isinstance(query, HedgerowError):
            raise query
        check_rows(rows, partial=call.partial, field="documents")
        vector = query[0]
        scores, failed = _scores(rows, lambda good: answers.cosine(vector, [r[0] for r in good]))
        return encoded, scores, failed, done.fingerprint

    async def _query(self, request: RerankRequest) -> Encoded:
        model = request.model
        if request.query_ids:
            encoded = from_ids([request.query_ids], model.limit)
            check_fit(encoded, model.limit, request.truncate, _the_query)
            return encoded
        return await self._core.encode_texts(
            model,
            [request.query],
            truncate=request.truncate,
            prompt=prompt_for(model.card, "query").text,
            path=_the_query,
        )

    async def _documents(self, request: RerankRequest) -> Encoded:
        model = request.model
        if request.ids:
            encoded = from_ids(request.ids, model.limit)
            check_fit(encoded, model.limit, request.truncate, _document)
            return encoded
        return await self._core.encode_texts(
            model,
            request.texts,
            truncate=request.truncate,
            prompt=prompt_for(model.card, "document").text,
            path=_document,
            limit=request.max_tokens_per_doc,
        )

    async def _pairs(
        self, request: RerankRequest, call: Call
    ) -> tuple[Encoded, Scores, list[tuple[int, HedgerowError]], str]:
        """One sequence per (query, document); the model's own head scores it."""
        encoded = await self._encode_pairs(request)
        lane = Lane.BULK if call.bulk else Lane.RERANK
        done = await self._core.run(
            request.model, encoded, OutputSpec("score"), lane, reply_bytes=4, call=call
        )
        check_rows(done.rows, partial=call.partial, field="documents")

        def read(good: Sequence[Any]) -> Scores:
            logits = np.array([row[0][0] for row in good], np.float32)
            return logits if request.raw_scores else _sigmoid(logits)

        scores, failed = _scores(done.rows, read)
        return encoded, scores, failed, done.fingerprint

    async def _encode_pairs(self, request: RerankRequest) -> Encoded:
        model, truncate = request.model, request.truncate
        tokenizer, limit = model.tokenizer, model.limit
        if request.ids:
            head = np.array(request.query_ids, np.int32)
            bare = from_ids(request.ids, 2**31 - 1)
            encoded = tokenizer.pair_ids(
                head, bare.input_ids, bare.cu_seqlens, limit=limit, truncate=truncate
            )
            check_fit(encoded, limit, truncate, _document)
            return encoded
        if model.frame is not None and model.framed is not None:
            frame = model.frame
            texts = [frame.body(request.query, t, request.instruction) for t in request.texts]
            job = partial(model.framed.encode, limit=limit, truncate=truncate)
        else:
            texts = request.texts
            job = partial(tokenizer.encode_pairs, request.query, limit=limit, truncate=truncate)
        return await self._core.tokenized(texts, job, limit, truncate, _document)


def _the_query(_: int) -> str:
    return "query"


def _document(index: int) -> str:
    return f"documents[{index}]"


def _scores(rows: Sequence[Row], read: Any) -> tuple[Scores, list[tuple[int, HedgerowError]]]:
    """float32 [num_documents], NaN where a document failed, and those failures."""
    failed = [(i, row) for i, row in enumerate(rows) if isinstance(row, HedgerowError)]
    good = [row for row in rows if not isinstance(row, HedgerowError)]
    scores = np.full(len(rows), np.nan, np.float32)
    bad = [i for i, _ in failed]
    mask = np.ones(len(rows), np.bool_)
    mask[bad] = False
    scores[mask] = read(good)
    return scores, failed


def _sigmoid(logits: Scores) -> Scores:
    return (1.0 / (1.0 + np.exp(-logits.astype(np.float64)))).astype(np.float32)
