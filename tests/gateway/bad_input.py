"""Every wrong request, what it is answered, and where it says the fault is.

Each case: id -> (route, body as bytes or object, status, code, paths). The model is the toy
WordPiece embedder under the alias `toy` with dimension 8; token ids are off, limits default.
"""

from __future__ import annotations

import json
from typing import Any

import msgpack

NAN_JSON = b'{"input": NaN}'
DEEP = b'{"input":' + b"[" * 5000 + b"]" * 5000 + b"}"
SURROGATES = b'{"input": ["fine", "\\ud800", "x\\udfffy"]}'

CASES: dict[str, tuple[str, Any, int, str, list[str | None]]] = {
    "empty-body": ("embed", b"", 400, "invalid_input", [None]),
    "blank-body": ("embed", b"  \n", 400, "invalid_input", [None]),
    "not-json": ("embed", b"hello", 400, "invalid_input", [None]),
    "cut-json": ("embed", b'{"input": "a', 400, "invalid_input", [None]),
    "not-a-number": ("embed", NAN_JSON, 400, "invalid_input", [None]),
    "bad-utf8": ("embed", b'{"input": "\xff\xfe"}', 400, "invalid_input", [None]),
    "a-list": ("embed", ["a"], 400, "invalid_input", [None]),
    "deep": ("embed", DEEP, 400, "invalid_input", [None]),
    "lone-surrogates": ("embed", SURROGATES, 400, "invalid_input", ["input[1]", "input[2]"]),
    "lone-surrogate-query": (
        "rerank", b'{"query":"\\udc00","documents":["a"]}', 400, "invalid_input", ["query"],
    ),
    "no-input": ("embed", {}, 400, "invalid_input", ["input"]),
    "null-input": ("embed", {"input": None}, 400, "invalid_input", ["input"]),
    "empty-text": ("embed", {"input": ""}, 400, "invalid_input", ["input"]),
    "empty-list": ("embed", {"input": []}, 400, "invalid_input", ["input"]),
    "object-input": ("embed", {"input": {"text": "a"}}, 400, "invalid_input", ["input"]),
    "number-input": ("embed", {"input": 5}, 400, "invalid_input", ["input"]),
    "empty-items": (
        "embed", {"input": ["a", "", "b", ""]}, 400, "invalid_input", ["input[1]", "input[3]"],
    ),
    "mixed-items": (
        "embed", {"input": ["a", 1, None, {}]}, 400, "invalid_input",
        ["input[1]", "input[2]", "input[3]"],
    ),
    "number-first": (
        "embed", {"input": [1, "a"]}, 400, "invalid_input", ["input[0]"],
    ),
    "boolean-items": (
        "embed", {"input": [True, "a", False]}, 400, "invalid_input", ["input[0]", "input[2]"],
    ),
    "float-items": ("embed", {"input": [1.5]}, 400, "invalid_input", ["input[0]"]),
    "token-ids": ("embed", {"input": [64, 65]}, 400, "token_ids_not_enabled", ["input"]),
    "token-id-lists": ("embed", {"input": [[64], [65]]}, 400, "token_ids_not_enabled", ["input"]),
    "too-many": ("embed", {"input": ["a"] * 8193}, 400, "invalid_input", ["input"]),
    "unknown-encoding": (
        "embed", {"input": "a", "encoding_format": "hex"}, 400, "invalid_input",
        ["encoding_format"],
    ),
    "encoding-type": (
        "embed", {"input": "a", "encoding_format": 1}, 400, "invalid_input", ["encoding_format"],
    ),
    "too-many-dimensions": (
        "embed", {"input": "a", "dimensions": 9}, 400, "invalid_input", ["dimensions"],
    ),
    "zero-dimensions": (
        "embed", {"input": "a", "dimensions": 0}, 400, "invalid_input", ["dimensions"],
    ),
    "boolean-dimensions": (
        "embed", {"input": "a", "dimensions": True}, 400, "invalid_input", ["dimensions"],
    ),
    "text-dimensions": (
        "embed", {"input": "a", "dimensions": "8"}, 400, "invalid_input", ["dimensions"],
    ),
    "unknown-truncate": (
        "embed", {"input": "a", "truncate": "MIDDLE"}, 400, "invalid_input", ["truncate"],
    ),
    "unknown-prompt": (
        "embed", {"input": "a", "prompt_name": "nope"}, 400, "invalid_input", ["prompt_name"],
    ),
    "unknown-input-type": (
        "embed", {"input": "a", "input_type": "nope"}, 400, "invalid_input", ["input_type"],
    ),
    "two-prompts": (
        "embed", {"input": "a", "input_type": "query", "prompt": "x"}, 400, "invalid_input",
        ["prompt"],
    ),
    "too-long": (
        "embed", {"input": ["a", "word " * 200], "truncate": "NONE"}, 400,
        "context_length_exceeded", ["input[1]"],
    ),
    "all-at-once": (
        "embed",
        {"input": ["", 1], "encoding_format": "x", "dimensions": -1, "prompt": 3, "truncate": 0},
        400, "invalid_input",
        ["input[0]", "input[1]", "encoding_format", "dimensions", "prompt", "truncate"],
    ),
    "unknown-model": ("embed", {"input": "a", "model": "gpt"}, 404, "model_not_found", ["model"]),
    "model-type": ("embed", {"input": "a", "model": 7}, 400, "invalid_input", ["model"]),
    "no-query": ("rerank", {"documents": ["a"]}, 400, "invalid_input", ["query"]),
    "no-documents": ("rerank", {"query": "a"}, 400, "invalid_input", ["documents"]),
    "empty-documents": (
        "rerank", {"query": "a", "documents": []}, 400, "invalid_input", ["documents"],
    ),
    "text-documents": (
        "rerank", {"query": "a", "documents": "b"}, 400, "invalid_input", ["documents"],
    ),
    "bad-documents": (
        "rerank", {"query": "a", "documents": ["b", 1, {"text": "c"}, {"title": "d"}]}, 400,
        "invalid_input", ["documents[1]", "documents[3]"],
    ),
    "bad-rerank-options": (
        "rerank", {"query": 1, "documents": ["b"], "top_n": -1, "return_documents": "yes"}, 400,
        "invalid_input", ["query", "top_n", "return_documents"],
    ),
    "rerank-token-ids": (
        "rerank", {"query": [1], "documents": [[1]]}, 400, "token_ids_not_enabled",
        ["query"],
    ),
    "rerank-list-query": (
        "rerank", {"query": ["q"], "documents": ["b"]}, 400, "invalid_input", ["query"],
    ),
    "broken-dimensions": (
        "embed", {"input": "a", "dimensions": 2.5}, 400, "invalid_input", ["dimensions"],
    ),
    "tokenize-nothing": ("tokenize", {"input": []}, 400, "invalid_input", ["input"]),
    "cut-msgpack": ("embed", b"\x81\xa5inp", 400, "invalid_input", [None]),
    "msgpack-surrogate": (
        "embed", msgpack.packb({"input": "\ud800"}, unicode_errors="surrogatepass"), 400,
        "invalid_input", ["input"],
    ),
}  # fmt: skip


def read(data: bytes) -> Any:
    """An error body, in whichever form it came: that of the request."""
    return json.loads(data) if data[:1] == b"{" else msgpack.unpackb(data)


def raw(body: Any) -> bytes:
    """The bytes a client sends."""
    return body if isinstance(body, bytes) else json.dumps(body).encode()
