"""Text for exactness tests: documents of the standard library, and mixtures made to hurt."""

from __future__ import annotations

import pydoc_data.topics
import random

DOCUMENTS = list(pydoc_data.topics.topics.values())
WORDS = " ".join(DOCUMENTS).split()

SPACES = [chr(c) for c in (9, 10, 13, 32, 0x85, 0xA0, 0x1680, 0x2003, 0x2028, 0x202F, 0x3000)]
TROUBLE = [
    *SPACES, "\u200b", "\u200c", "\u200d", "\ufe0f", "\ufeff", "\u2581", "\u2581\u2581", "\u00ad",
    "\u0301", "\u0300", "\u0327", "\u0345", "\u3099", "\u093c", "\u094d", "\u0915", "\u0958",
    "\u0600", "\u06dd", "\u1100", "\u1161", "\u11a8", "\uac00", "\uac01", "ﬁ", "\ufdfa", "㎥",
    "™", "©", "😀", "\U0001f3fb", "🇩", "\U000e0001", "\U000e0100", "\ufffd", "\x00", "\x01",
    "\x7f", "\x1f", "Å", "\u0344", "ẛ", "＜", "＞", "</s>", "<s>", "<mask>", "<unk>", "e\u0301",
    "\r\n", "aaaa", "a" * 17, "......", "hello", "日本語", ",", ".", "-", "(", ")",
]  # fmt: skip
_RANGES = (
    (0x20, 0x7F), (0x01, 0x250), (0x300, 0x370), (0x400, 0x530), (0x590, 0x700), (0x900, 0xD80),
    (0xE00, 0x1000), (0x1100, 0x1200), (0x2000, 0x2C00), (0x3040, 0x3100), (0x4E00, 0x9FFF),
    (0xAC00, 0xD7A4), (0xF900, 0x10000), (0x10000, 0x11E00), (0x1F000, 0x1FB00),
)  # fmt: skip


def mixture(rng: random.Random) -> str:
    """One nasty string; lengths from 1 to a few hundred characters."""
    size = rng.choice((1, 2, 3, 5, 8, 13, 30, 80))
    kind = rng.random()
    if kind < 0.25:
        return "".join(rng.choice(TROUBLE) for _ in range(size))
    if kind < 0.65:
        low, high = rng.choice(_RANGES)
        pool = [chr(rng.randrange(low, high)) for _ in range(60)]
        return "".join(
            rng.choice(pool) if rng.random() < 0.85 else rng.choice(TROUBLE)
            for _ in range(2 * size)
        )
    if kind < 0.75:
        points = [rng.randrange(rng.choice((0x3000, 0x30000, 0x110000))) for _ in range(size)]
        return "".join(chr(p) for p in points if not 0xD800 <= p < 0xE000)
    glue = ("", " ", "  ", "\n", rng.choice(TROUBLE)) if kind < 0.88 else (" ",)
    return "".join(rng.choice(WORDS) + rng.choice(glue) for _ in range(size))


def mixtures(count: int, seed: int) -> list[str]:
    rng = random.Random(seed)
    return [mixture(rng) for _ in range(count)]


def pieces_of_documents(count: int, seed: int) -> list[str]:
    """Stretches of the documents, cut anywhere, up to a few thousand characters."""
    rng = random.Random(seed)
    found = []
    while len(found) < count:
        document = rng.choice(DOCUMENTS)
        start = rng.randrange(len(document))
        found.append(document[start : start + rng.choice((40, 400, 4000))])
    return found


def long_words(seed: int) -> list[str]:
    """Texts with a word far beyond the word buffer's usual 4 KB."""
    rng = random.Random(seed)
    size = 12_000
    return [
        "a" * size,
        "ab" * size + " tail",
        "".join(rng.choice("ab") for _ in range(size)),
        "".join(chr(rng.randrange(0x4E00, 0x9FFF)) for _ in range(size)),
        "".join(rng.choice("的一是不了在人有我他这个们中来上大为和国") for _ in range(size)),
        "".join(rng.choice(WORDS) for _ in range(size // 5)),
        "e" + "\u0301" * size + " a",
        "㌀" * (size // 3) + "x",
        "".join(rng.choice(("foo", "\u0085", "\u0085 ", " ", "\u2003")) for _ in range(size // 3))
        + "\u0085" * 6000,
        "x" + " \u0085" * 6000,
        "x" + " \u0085" * 6000 + "y",
    ]
