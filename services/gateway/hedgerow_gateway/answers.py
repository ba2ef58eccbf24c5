"""Results -> bytes. Large JSON answers come in pieces, so that their making can be interleaved."""

from __future__ import annotations

import binascii
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import msgpack
import numpy as np
import numpy.typing as npt
import orjson

from hedgerow_gateway.failures import row_error
from hedgerow_gateway.models import ServedModel
from hedgerow_gateway.schema import EmbedRequest, Encoding, RerankRequest
from hedgerow_gateway.tokenizer.encoded import Encoded
from hedgerow_shared.errors import HedgerowError
from hedgerow_shared.ragged import Array, Row

_PIECE_BYTES = 32 * 1024
_REPORTS_PER_PIECE = 250
_JSON_BYTES_PER_NUMBER = {"float": 9.0, "base64": 16 / 3}


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedAnswer:
    """One vector, or one error, per input."""

    request: EmbedRequest
    encoded: Encoded
    rows: Sequence[Row]
    fingerprint: str


def least_json_bytes(count: int, width: int, encoding: Encoding) -> int:
    """A lower bound on the answer's size, known before anything is computed."""
    return int(count * (width * _JSON_BYTES_PER_NUMBER[encoding] + 50))


def embed_json(answer: EmbedAnswer) -> Iterator[bytes]:
    """The OpenAI object plus `hedgerow`, in pieces of about 32 KB."""
    request, rows = answer.request, answer.rows
    per_row = request.width * (11 if request.encoding == "float" else 6) + 60
    step = max(1, _PIECE_BYTES // per_row)
    head = {"model": request.model.alias, "usage": usage(answer.encoded), **_errors(rows)}
    if len(rows) <= min(step, _REPORTS_PER_PIECE):
        body = {
            "object": "list",
            "data": [_item(i, row, request.encoding) for i, row in enumerate(rows)],
            **head,
            "hedgerow": hedgerow(answer.encoded, request.prompt.name, answer.fingerprint),
        }
        yield orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)
        return
    yield b'{"object":"list","data":['
    for start in range(0, len(rows), step):
        items = [
            _item(i, row, request.encoding)
            for i, row in enumerate(rows[start : start + step], start)
        ]
        piece = orjson.dumps(items, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1]
        yield piece if start == 0 else b"," + piece
    yield b"]," + orjson.dumps(head)[1:-1] + b',"hedgerow":{"inputs":['
    for start in range(0, len(rows), _REPORTS_PER_PIECE):
        piece = orjson.dumps(reports(answer.encoded, start, start + _REPORTS_PER_PIECE))[1:-1]
        yield piece if start == 0 else b"," + piece
    tail = {"prompt": request.prompt.name, "fingerprint": answer.fingerprint}
    yield b"]," + orjson.dumps(tail)[1:-1] + b"}}"


def embed_msgpack(answer: EmbedAnswer) -> bytes:
    """Vectors as one block of little-endian float32, C order; a failed row is zeros."""
    request, rows = answer.request, answer.rows
    data = np.zeros((len(rows), request.width), "<f4")
    for i, row in enumerate(rows):
        if not isinstance(row, HedgerowError):
            data[i] = row[0]
    body = {
        "model": request.model.alias,
        "dtype": "float32",
        "shape": list(data.shape),
        "data": data.tobytes(),
        "usage": usage(answer.encoded),
        **_errors(rows),
        "hedgerow": hedgerow(answer.encoded, request.prompt.name, answer.fingerprint),
    }
    packed = msgpack.packb(body)
    assert packed is not None, "packb returns bytes unless given a stream"
    return packed


def rerank_body(
    request: RerankRequest,
    encoded: Encoded,
    scores: npt.NDArray[np.float32],
    failed: Sequence[tuple[int, HedgerowError]],
    fingerprint: str,
    request_id: str,
) -> dict[str, Any]:
    """The object that Jina, Cohere and vLLM clients read. Best first; failed documents last.

    encoded: one sequence per document, after the query's where that is a sequence of its own
    scores: float32 [num_documents]; NaN where a document failed
    """
    errors = dict(failed)
    order = np.argsort(-scores, kind="stable").tolist()
    results: list[dict[str, Any]] = []
    for index, score in zip(order, scores[order].tolist(), strict=True):
        entry: dict[str, Any] = {"index": index, "relevance_score": score}
        if index in errors:
            entry["relevance_score"] = None
            entry["error"] = row_error(index, errors[index])
        if request.return_documents and request.texts:
            entry["document"] = {"text": request.texts[index]}
        results.append(entry)
    tokens = usage(encoded)
    return {
        "id": request_id,
        "model": request.model.alias,
        "results": results[: request.top_n],
        "usage": tokens,
        "meta": {
            "api_version": {"version": "2"},
            "billed_units": {"search_units": 1},
            "tokens": {"input_tokens": tokens["total_tokens"]},
        },
        **({"errors": [row_error(i, e) for i, e in failed]} if failed else {}),
        "hedgerow": {
            "inputs": reports(encoded, encoded.num_seqs - len(scores), encoded.num_seqs),
            "fingerprint": fingerprint,
        },
    }


def tokenize_body(model: ServedModel, encoded: Encoded, prompt: str | None) -> dict[str, Any]:
    """Ids as the model gets them, specials included."""
    ids, cu = encoded.input_ids.tolist(), encoded.cu_seqlens.tolist()
    return {
        "model": model.alias,
        "token_ids": [ids[a:b] for a, b in pairwise(cu)],
        "usage": usage(encoded),
        "hedgerow": {
            "inputs": reports(encoded, 0, encoded.num_seqs),
            "prompt": prompt,
            "tokenizer_fingerprint": model.fingerprint,
        },
    }


def usage(encoded: Encoded) -> dict[str, int]:
    """Tokens used, specials included."""
    return {"prompt_tokens": encoded.num_tokens, "total_tokens": encoded.num_tokens}


def hedgerow(encoded: Encoded, prompt: str | None, fingerprint: str) -> dict[str, Any]:
    """The one key of ours in every answer: what was done to each input, and by which model."""
    return {
        "inputs": reports(encoded, 0, encoded.num_seqs),
        "prompt": prompt,
        "fingerprint": fingerprint,
    }


def reports(encoded: Encoded, start: int, stop: int) -> list[dict[str, Any]]:
    """Per input: tokens seen, used, and whether it was cut.

    `tokens_seen_at_least` marks a text so long that its rest was never tokenized.
    """
    stop = min(stop, encoded.num_seqs)
    cu = encoded.cu_seqlens[start : stop + 1].tolist()
    seen = encoded.seen[start:stop].tolist()
    cuts = encoded.truncated[start:stop].tolist()
    flags = encoded.at_least[start:stop].tolist()
    out: list[dict[str, Any]] = []
    for i, (tokens, was_cut, at_least) in enumerate(zip(seen, cuts, flags, strict=True)):
        used = cu[i + 1] - cu[i]
        report = {"tokens_seen": tokens, "tokens_used": used, "truncated": was_cut}
        if at_least:
            report["tokens_seen_at_least"] = True
        out.append(report)
    return out


def cosine(query: Array, documents: Sequence[Array]) -> npt.NDArray[np.float32]:
    """Cosine of one vector with each of several: float32 [num_documents]."""
    matrix = np.stack(documents).astype(np.float32, copy=False)
    norms = np.linalg.norm(matrix, axis=1) * np.linalg.norm(query)
    found = (matrix @ query) / np.maximum(norms, np.float32(1e-12))
    return np.clip(found, -1.0, 1.0)  # rounding may lead a little past the ends


def _item(index: int, row: Row, encoding: Encoding) -> dict[str, Any]:
    if isinstance(row, HedgerowError):
        error = row_error(index, row)
        return {"object": "embedding", "index": index, "embedding": None, "error": error}
    vector = row[0]
    if encoding == "base64":
        raw = vector.astype("<f4", copy=False).tobytes()
        text = binascii.b2a_base64(raw, newline=False).decode("ascii")
        return {"object": "embedding", "index": index, "embedding": text}
    if not vector.flags.c_contiguous or vector.dtype != np.float32:
        vector = np.ascontiguousarray(vector, np.float32)
    return {"object": "embedding", "index": index, "embedding": vector}


def _errors(rows: Sequence[Row]) -> dict[str, Any]:
    errors = [row_error(i, row) for i, row in enumerate(rows) if isinstance(row, HedgerowError)]
    return {"errors": errors} if errors else {}
