"""Is a fast encoder exact? Asked once at load over nasty strings, and now and then in service.

`reference` is always the `tokenizers` library; whoever differs from it once does not serve.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np

from hedgerow_gateway.tokenizer.encoder import Encoder
from hedgerow_shared.ragged import TokenIds

Log = Callable[[str], None]

# Counted for all models of this process; the gateway exports them as gauges.
FIGURES = {
    "tokenizer_selfcheck_differences": 0,
    "tokenizer_shadow_texts": 0,
    "tokenizer_shadow_differences": 0,
}
SHADOW_EVERY = 10_000
_SHADOW_CHARS = 16 * 1024

_FIXED: tuple[str, ...] = (
    "", " ", "  ", "\n", "\t x \t", " x ", "x\n", "a  b", "a\u00a0b", "a\u3000 b", "a\u0085",
    "\u0085", "a \u0085 \u2003", "\u0085a\u0085 \u0085b", "x\u200b", "\u200b", "\ufeff",
    "\u2581", "\u2581a", "a\u2581", "a \u2581b", " \u2581 ", "\u2581\u2581", "</s>", "<s>x",
    "a<mask> b", "<unk>", "[SEP]", "[CLS] a", "＜/s＞", "＜ｍａｓｋ＞", "<|im_end|>",
    "<|endoftext|>", "e\u0301", "ﬁ\u0301n", "™\u0301", "😀\u200d™\u0301", "👨\u200d👩\u200d👧",
    "🇩🇪🇫🇷", "🇩\u0301", "👍🏽", "क\u094dक\u0301", "क़\u0301", "\u0958\u094d\u0958\u0301",
    "한\u0301국", "\u1100\u1161\u11a8", "각\u11a8", "\u0600a\u0301", "\u06dd\u0301", "\r\n",
    "a\r\n\u0301", "\u0301a", "\x00", "a\x00b", "\x1f", "\x7f", "\ue000", "\U000f0000", "\u0378",
    "\ufdfa", "㌀㌁", "ｱﾞ", "か\u3099", "Å\u0323", "\u0344", "İ", "ß", "ſ\u0323\u0307",
    "שָׁלוֹם", "الله", "\u202eabc\u202c", "ไทยภาษา", "ខ្មែរ", "𝔘𝔫𝔦", "①②", "ⅷ", "½", "a" * 500,
    "ab" * 300, "." * 200, "=" * 99, "日本語" * 50, "http://example.org/a?b=c&d=e#f",
    "user.name+tag@example.com", "3.14159e-10", "C++/C#", "don't", "l'été", "state-of-the-art",
    "(a)(b)[c]{d}", "x" + "\u0301" * 300, "\u200d" * 50, "a\u0300b" * 100,
)  # fmt: skip

_BLOCKS = (
    (0x20, 0x7F), (0x01, 0x250), (0x250, 0x370), (0x370, 0x530), (0x530, 0x700), (0x700, 0x900),
    (0x900, 0xE00), (0xE00, 0x1100), (0x1100, 0x1200), (0x1200, 0x2000), (0x2000, 0x2100),
    (0x2100, 0x2C00), (0x2C00, 0x3130), (0x3130, 0x3400), (0x4E00, 0xA000), (0xA000, 0xAC00),
    (0xAC00, 0xD7FC), (0xE000, 0xFB00), (0xFB00, 0x10000), (0x10000, 0x12000), (0x1D000, 0x20000),
    (0x20000, 0x30000), (0xE0000, 0xE0200),
)  # fmt: skip
_GLUE: tuple[str, ...] = (
    " ", " ", "  ", "\n", ",", ".", "-", "'", "a", "the", "e\u0301", "\u0301", "\u0308",
    "\u0327", "\u200d", "\u200c", "\ufe0f", "\u0085", "\u00a0", "\u3000", "\u2581", "\u00ad",
    "™", "ﬁ", "😀", "क", "\u094d", "\u0600", "각", "\u11a8", "ÅA", "</s>",
)  # fmt: skip


@cache
def nasty(count: int = 2000) -> tuple[str, ...]:
    """The same `count` strings on every machine: a fixed list, then mixtures of all scripts."""
    rng = random.Random(20_240_601)
    made = dict.fromkeys(_FIXED)
    while len(made) < count:
        low, high = rng.choice(_BLOCKS)
        glue = rng.choice((0.0, 0.2, 0.6))
        parts = [
            rng.choice(_GLUE) if rng.random() < glue else _char(rng, low, high)
            for _ in range(rng.choice((1, 2, 3, 5, 8, 13, 21, 60)))
        ]
        made["".join(parts)] = None
    return tuple(made)[:count]


def _char(rng: random.Random, low: int, high: int) -> str:
    point = rng.randrange(low, high)
    return chr(point) if not 0xD800 <= point < 0xE000 else "\ufffd"


def differences(
    encoder: Encoder, reference: Encoder, texts: Sequence[str] | None = None
) -> list[str]:
    """The texts whose ids differ, counted in FIGURES. Default: `nasty()`, alone and in a batch."""
    texts = nasty() if texts is None else texts
    ids, cu = reference.encode(texts)
    found_ids, found_cu = encoder.encode(texts)
    wrong = [
        text
        for k, text in enumerate(texts)
        if not np.array_equal(_part(ids, cu, k), _part(found_ids, found_cu, k))
        or not np.array_equal(_part(ids, cu, k), encoder.encode([text])[0])
    ]
    FIGURES["tokenizer_selfcheck_differences"] += len(wrong)
    return wrong


def _part(ids: TokenIds, cu: TokenIds, k: int) -> TokenIds:
    return ids[cu[k] : cu[k + 1]]


class Shadowed:
    """A fast encoder, compared with the reference on one call in SHADOW_EVERY.

    After a difference the reference serves: wrong ids would quietly spoil an index.
    """

    def __init__(
        self, fast: Encoder, reference: Encoder, *, log: Log, every: int = SHADOW_EVERY
    ) -> None:
        self._fast = fast
        self._reference = reference
        self._log = log
        self._every = every
        self._calls = 0
        self._head = getattr(fast, "head", None)

    @property
    def name(self) -> str:
        return self._fast.name

    def encode(self, texts: Sequence[str]) -> tuple[TokenIds, TokenIds]:
        result = self._fast.encode(texts)
        # Threads may lose a count here; a sample need not be exact.
        self._calls += 1
        if self._calls >= self._every:
            self._calls = 0
            self._compare(texts, result)
        return result

    def head(self, text: str, budget: int) -> tuple[TokenIds, bool] | None:
        """As `Encoder.head` of the fast encoder; None where it has none."""
        return None if self._head is None else self._head(text, budget)

    def _compare(self, texts: Sequence[str], result: tuple[TokenIds, TokenIds]) -> None:
        text = texts[self._pick(len(texts))] if texts else ""
        if not text or len(text) > _SHADOW_CHARS:
            return
        FIGURES["tokenizer_shadow_texts"] += 1
        at = texts.index(text)
        expected = self._reference.encode([text])[0]
        if np.array_equal(expected, _part(*result, at)):
            return
        FIGURES["tokenizer_shadow_differences"] += 1
        # The text is the caller's own and stays out of the log.
        self._log(
            f"{self.name} tokenizer differs from the library on a text of {len(text)} "
            "characters; the library serves from now on"
        )
        self._fast, self._head = self._reference, None

    def _pick(self, count: int) -> int:
        return random.randrange(count)
