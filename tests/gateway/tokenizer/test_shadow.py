"""In service a fast encoder is compared with the library now and then."""

from __future__ import annotations

import numpy as np

from hedgerow_gateway.tokenizer.selfcheck import FIGURES, Shadowed


class Letters:
    """One id per character; `plus` makes it wrong."""

    def __init__(self, name: str, plus: int = 0) -> None:
        self.name, self.plus, self.calls = name, plus, 0

    def encode(self, texts):
        self.calls += 1
        cu = np.zeros(len(texts) + 1, np.int32)
        np.cumsum([len(t) for t in texts], out=cu[1:])
        return np.array([ord(c) + self.plus for t in texts for c in t], np.int32), cu


class WithHead(Letters):
    def head(self, text, budget):
        return self.encode([text[: budget + 1]])[0], len(text) <= budget


def test_one_call_in_so_many_is_compared_and_counted():
    fast, library, lines = Letters("fast"), Letters("hf"), []
    shadowed = Shadowed(fast, library, log=lines.append, every=10)
    before = dict(FIGURES)
    for _ in range(95):
        shadowed.encode(["abc", "de"])
    assert library.calls == 9
    assert FIGURES["tokenizer_shadow_texts"] == before["tokenizer_shadow_texts"] + 9
    assert FIGURES["tokenizer_shadow_differences"] == before["tokenizer_shadow_differences"]
    assert (lines, shadowed.name) == ([], "fast")


def test_after_a_difference_the_library_serves_and_the_log_holds_no_text():
    fast, library, lines = Letters("fast", plus=1), Letters("hf"), []
    shadowed = Shadowed(fast, library, log=lines.append, every=3)
    before = FIGURES["tokenizer_shadow_differences"]
    for _ in range(3):
        shadowed.encode(["secret"])
    assert FIGURES["tokenizer_shadow_differences"] == before + 1
    assert len(lines) == 1 and "6 characters" in lines[0] and "secret" not in lines[0]
    assert shadowed.encode(["a"])[0].tolist() == [ord("a")]
    assert shadowed.name == "hf"
    assert shadowed.head("a", 1) is None


def test_the_head_of_a_text_is_passed_through_where_there_is_one():
    assert Shadowed(Letters("x"), Letters("hf"), log=print).head("abc", 1) is None
    ids, whole = Shadowed(WithHead("x"), Letters("hf"), log=print).head("abc", 1)
    assert (ids.tolist(), whole) == ([97, 98], False)
