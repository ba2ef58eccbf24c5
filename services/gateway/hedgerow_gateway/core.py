"""What the gateway does, whatever the transport: decoded bodies in, encoded answers out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import Any

from hedgerow_gateway import answers, splitter
from hedgerow_gateway.bodies import encode
from hedgerow_gateway.call import Call
from hedgerow_gateway.coalesce import Coalescer
from hedgerow_gateway.dispatch import Done, Work
from hedgerow_gateway.failures import check_rows
from hedgerow_gateway.giveway import MANY, breathe
from hedgerow_gateway.metrics import Metrics
from hedgerow_gateway.models import Models, ServedModel
from hedgerow_gateway.pool import SlicePool
from hedgerow_gateway.schema import EmbedRequest, Rules, read_embed, read_tokenize
from hedgerow_gateway.tokenizer.assemble import Truncate
from hedgerow_gateway.tokenizer.encoded import Encoded, from_ids
from hedgerow_shared.errors import BadInputError, Problem, TooLargeError, TooLongError
from hedgerow_shared.ragged import Lane, OutputSpec

QUERY_TOKENS = 8192
"""A larger embed request goes on the bulk lane: it is no query and must not stand before one."""

_TURN_S = 0.0003


class Core:
    """The use cases. Each takes a decoded body and returns (model alias, pieces of the answer).

    check_room: raises OverloadedError for a model and lane that no worker has room for; None:
        that is only known afterwards
    """

    def __init__(
        self,
        models: Models,
        coalescer: Coalescer,
        pool: SlicePool,
        metrics: Metrics,
        rules: Rules,
        check_room: Callable[[str, Lane], None] | None = None,
    ) -> None:
        self.models, self.metrics, self.rules = models, metrics, rules
        self._coalescer, self._pool, self._check_room = coalescer, pool, check_room

    async def embed(self, body: Mapping[str, Any], call: Call) -> tuple[str, list[bytes]]:
        """Raises HedgerowError of every kind; see docs/protocol.md."""
        request = read_embed(body, self.models, self.rules, call.alias)
        model = request.model
        _check_size(request, call)
        self.check_room(model, Lane.BULK if call.bulk else Lane.QUERY)
        if request.ids:
            encoded = from_ids(request.ids, model.limit)
            check_fit(encoded, model.limit, request.truncate, input_path(body))
        else:
            encoded = await self.encode_texts(
                model,
                request.texts,
                truncate=request.truncate,
                prompt=request.prompt.text,
                path=input_path(body),
            )
        output = OutputSpec(dimensions=() if request.dimensions is None else (request.width,))
        bulk = call.bulk or encoded.num_tokens > QUERY_TOKENS
        done = await self.run(
            model,
            encoded,
            output,
            Lane.BULK if bulk else Lane.QUERY,
            reply_bytes=request.width * 4,
            call=call,
        )
        check_rows(done.rows, partial=call.partial)
        answer = answers.EmbedAnswer(
            request=request, encoded=encoded, rows=done.rows, fingerprint=done.fingerprint
        )
        if call.form == "msgpack":
            return model.alias, [answers.embed_msgpack(answer)]
        return model.alias, await in_turns(answers.embed_json(answer))

    async def tokenize(self, body: Mapping[str, Any], call: Call) -> tuple[str, list[bytes]]:
        """Shows what the model would get."""
        request = read_tokenize(body, self.models, self.rules, call.alias)
        encoded = await self.encode_texts(
            request.model,
            request.texts,
            truncate=request.truncate,
            prompt=request.prompt.text,
            path=input_path(body),
        )
        reply = answers.tokenize_body(request.model, encoded, request.prompt.name)
        return request.model.alias, [encode(reply, call.form)]

    def check_room(self, model: ServedModel, lane: Lane) -> None:
        """Raise OverloadedError now for what the workers would refuse after it was tokenized."""
        if self._check_room is not None:
            self._check_room(model.alias, lane)

    async def encode_texts(
        self,
        model: ServedModel,
        texts: Sequence[str],
        *,
        truncate: Truncate,
        path: Callable[[int], str],
        prompt: str = "",
        limit: int | None = None,
    ) -> Encoded:
        """Tokenize texts and see that each fits and holds something."""
        limit = min(limit or model.limit, model.limit)
        job = partial(model.tokenizer.encode, limit=limit, truncate=truncate, prompt=prompt)
        return await self.tokenized(texts, job, limit, truncate, path)

    async def tokenized(
        self,
        texts: Sequence[str],
        job: Callable[[Sequence[str]], Encoded],
        limit: int,
        truncate: Truncate,
        path: Callable[[int], str],
    ) -> Encoded:
        """Run a tokenizing job over texts, in slices if they are many, and check its result."""
        began_s = perf_counter()
        encoded = await self._pool.encode(texts, job)
        self.metrics.stage("tokenize", perf_counter() - began_s)
        check_fit(encoded, limit, truncate, path)
        return encoded

    async def run(
        self,
        model: ServedModel,
        encoded: Encoded,
        output: OutputSpec,
        lane: Lane,
        *,
        reply_bytes: int,
        call: Call,
    ) -> Done:
        """Have the workers compute one row per sequence. reply_bytes: of one row."""
        limits = _chunk_limits(lane, encoded.num_seqs)
        began_s = perf_counter()

        def split(part: Encoded) -> list[tuple[int, int]]:
            return splitter.split(part.used.tolist(), reply_bytes, limits)

        work = Work(
            model=model.alias,
            encoded=encoded,
            output=output,
            lane=lane,
            chunks=split(encoded),
            deadline_s=asyncio.get_running_loop().time() + call.ttl_s,
            fingerprint=model.fingerprint,
            trace=call.trace,
            keep_going=call.partial,
        )
        if encoded.num_seqs > MANY:
            await breathe()
        truncated = int(encoded.truncated.sum())
        self.metrics.tokens(model.alias, encoded.num_tokens, truncated)
        done = await self._coalescer.run(work, split)
        took_s = perf_counter() - began_s
        worker_s = (done.queue_ms + done.compute_ms) / 1e3
        self.metrics.stage("queue", done.queue_ms / 1e3)
        self.metrics.stage("forward", done.compute_ms / 1e3)
        self.metrics.stage("bus", max(took_s - worker_s, 0.0))
        return done


def _chunk_limits(lane: Lane, num_seqs: int) -> splitter.ChunkLimits:
    if lane is Lane.BULK:
        return splitter.bulk_limits(num_seqs)
    return splitter.RERANK if lane is Lane.RERANK else splitter.EMBED


def input_path(body: Mapping[str, Any]) -> Callable[[int], str]:
    """How a caller finds an input again: `input` when it is one text
    or one list of token ids, else `input[3]`."""
    value = body.get("input")
    if isinstance(value, str) or (isinstance(value, list) and value and type(value[0]) is int):
        return lambda _: "input"
    return lambda index: f"input[{index}]"


def check_fit(encoded: Encoded, limit: int, truncate: Truncate, path: Callable[[int], str]) -> None:
    """Raise TooLongError naming each text that is too long where cutting was not wanted, and
    BadInputError naming those of which nothing was left."""
    lens, seen = encoded.used, encoded.seen
    if truncate == "none" and (long := (seen > limit).nonzero()[0].tolist()):
        counts = [f"more than {limit}" if encoded.at_least[i] else seen[i] for i in long]
        problems = [
            Problem(path(i), f"has {count} tokens; the model takes {limit}")
            for i, count in zip(long, counts, strict=True)
        ]
        raise TooLongError(problems[:100])
    if not lens.all():
        empty = (lens == 0).nonzero()[0].tolist()
        raise BadInputError([Problem(path(i), "holds no token") for i in empty[:100]])


async def in_turns(pieces: Iterator[bytes]) -> list[bytes]:
    """Make all pieces, letting others have the loop every 0.3 ms."""
    made: list[bytes] = []
    began_s = perf_counter()
    for piece in pieces:
        made.append(piece)
        if perf_counter() - began_s > _TURN_S:
            await breathe()
            began_s = perf_counter()
    return made


def check_reply(size: int, call: Call) -> None:
    """Raise TooLargeError when an answer of `size` bytes cannot be carried back."""
    if call.max_reply_bytes is not None and size > call.max_reply_bytes:
        raise TooLargeError(
            f"the answer would have {size} bytes and a NATS reply may have "
            f"{call.max_reply_bytes}: send fewer inputs at a time, ask for fewer dimensions, or "
            "use HTTP (POST /v1/embeddings, POST /rerank), which has no such limit"
        )


def _check_size(request: EmbedRequest, call: Call) -> None:
    """Refuse an answer that could not be sent, before computing it."""
    count = len(request.texts) or len(request.ids)
    if call.form == "msgpack":
        check_reply(count * request.width * 4, call)
    else:
        check_reply(answers.least_json_bytes(count, request.width, request.encoding), call)
