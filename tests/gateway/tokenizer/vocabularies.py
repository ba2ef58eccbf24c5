"""Unigram tokenizer.json files for tests: a small trained vocabulary, or XLM-R's real one."""

from __future__ import annotations

import json
import pydoc_data.topics
from functools import cache
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from tokenizers.normalizers import Precompiled

from benchmarks.tokenizers.vocabulary import (
    PIPELINES,
    SPECIALS,
    as_file,
    charsmap,
    spec,
    xlmr_pieces,
)

__all__ = ["PIPELINES", "SPECIALS", "as_file", "charsmap", "small_pieces", "spec", "xlmr_pieces"]

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


@cache
def small_pieces() -> list[list[Any]]:
    """A few thousand pieces trained on the standard library's documentation and nine scripts."""
    tok = Tokenizer(models.Unigram())
    tok.normalizer = Precompiled(charsmap())
    tok.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=3000, special_tokens=list(SPECIALS), unk_token="<unk>", show_progress=False
    )
    tok.train_from_iterator([*pydoc_data.topics.topics.values(), *_SCRIPTS * 20], trainer)
    return json.loads(tok.to_str())["model"]["vocab"]
