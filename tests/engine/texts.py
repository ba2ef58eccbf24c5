"""Two hundred texts of every kind people embed, made from a seed: no file, no download."""

from __future__ import annotations

import random

_SENTENCES = [
    "The quick brown fox jumps over the lazy dog.",
    "Embedding servers batch short queries with long documents.",
    "Où est la bibliothèque ? Elle est à côté de la gare.",
    "Der schnelle braune Fuchs springt über den faulen Hund.",
    "El rápido zorro marrón salta sobre el perro perezoso.",
    "Быстрая коричневая лиса прыгает через ленивую собаку.",
    "素早い茶色の狐がのろまな犬を飛び越える。",
    "敏捷的棕色狐狸跳过懒狗。",
    "الثعلب البني السريع يقفز فوق الكلب الكسول.",
    "빠른 갈색 여우가 게으른 개를 뛰어넘는다.",
    "तेज भूरी लोमड़ी आलसी कुत्ते के ऊपर कूदती है।",
    "for i in range(10): print(i ** 2)  # squares",
    "SELECT name, count(*) FROM users WHERE age >= 21 GROUP BY name;",
    "const f = async (x) => ({ ...x, y: await g(x?.id ?? 0) });",
    '{"key": [1, 2.5e-3, null, true], "nested": {"a": "b"}}',
    "https://example.org/a/b?c=d&e=f#g",
    "🦊 jumps 🐕 — “quotes”, dashes… and ½ fractions ≥ 3.14",
    "A\tTAB, a  double space,\nand a newline",
    "42",
    "?!",
]


def varied_texts(count: int = 200, seed: int = 7) -> list[str]:
    """`count` texts of 1 to about 400 words, in many scripts."""
    rng = random.Random(seed)
    texts = list(_SENTENCES)
    while len(texts) < count:
        sentences = min(40, max(1, int(rng.lognormvariate(0.9, 1.1))))
        texts.append(" ".join(rng.choice(_SENTENCES) for _ in range(sentences)))
    return texts[:count]
