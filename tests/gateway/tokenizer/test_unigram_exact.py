"""Ids of the unigram encoder are those of the `tokenizers` library, whatever the text."""

from __future__ import annotations

import random
import threading

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hedgerow_gateway.tokenizer.selfcheck import nasty
from hedgerow_shared.errors import BadInputError
from tests.gateway.tokenizer import texts
from tests.gateway.tokenizer.conftest import ids_of
from tests.gateway.tokenizer.vocabularies import PIPELINES

PUSHED = settings(
    max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_nasty_strings_and_documents_give_the_librarys_ids(small, pipeline):
    strings = [*nasty(), *texts.mixtures(3000, 1), *texts.pieces_of_documents(300, 2)]
    assert small(pipeline).differences(strings) == []


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_any_code_points_give_the_librarys_ids(small, pipeline):
    pair = small(pipeline)

    @PUSHED
    @given(st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
    def all_of_unicode(text):
        assert ids_of(pair.fast, text) == ids_of(pair.library, text)

    @PUSHED
    @given(st.lists(st.sampled_from(texts.TROUBLE), max_size=12).map("".join))
    def what_is_known_to_hurt(text):
        assert ids_of(pair.fast, text) == ids_of(pair.library, text)

    all_of_unicode()
    what_is_known_to_hurt()


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_words_far_longer_than_the_buffer_give_the_librarys_ids(small, pipeline):
    assert small(pipeline).differences(texts.long_words(3)) == []


@pytest.mark.parametrize("pipeline", PIPELINES)
@pytest.mark.parametrize(
    "text",
    ["😀\u200d™\u0301", "👩\u200d©\u0301\u0302x", "a\u0085", "a \u0085", "\u0085", "a\u0085b"],
    ids=ascii,
)
def test_emoji_clusters_and_next_line_are_as_in_the_library(small, pipeline, text):
    pair = small(pipeline)
    assert ids_of(pair.fast, text) == ids_of(pair.library, text)


@pytest.mark.parametrize("scale", [1.0, 1e9], ids=["usual", "huge"])
def test_scores_that_tie_are_ordered_as_the_library_orders_them(open_pair, scale):
    """Sums of the same three scores in another order differ in the last bit, or do not."""
    rng = random.Random(11)
    letters = "abcdefg"
    pieces = [["<unk>", 0.0], ["<s>", 0.0], ["<pad>", 0.0], ["</s>", 0.0], ["<mask>", 0.0]]
    scores = [-0.1, -0.2, -0.3, -1.1, -1.7, -2.3, -3.1]
    pieces += [["\u2581", -2.5], *([c, rng.choice(scores)] for c in letters)]
    pieces += [[a + b, rng.choice(scores) + rng.choice(scores)] for a in letters for b in letters]
    pieces += [["\u2581" + c, -2.5 + rng.choice(scores)] for c in letters]
    pieces = [[piece, score * scale] for piece, score in pieces]
    pair = open_pair(pieces, "A")
    strings = [
        "".join(rng.choice(letters + "  .,") for _ in range(rng.randint(1, 40)))
        for _ in range(4000)
    ]
    assert pair.differences(strings) == []


def test_equal_pieces_empty_pieces_and_pieces_with_inner_marks_are_as_in_the_library(open_pair):
    pieces = [["<unk>", 0.0], ["<s>", 0.0], ["<pad>", 0.0], ["</s>", 0.0], ["<mask>", 0.0]]
    pieces += [["\u2581a", -1.0], ["\u2581", -2.0], ["a", -1.5], ["a", -9.0], ["a\u2581b", -0.1]]
    pieces += [["\u2581a", -8.0], ["b", -3.0], ["ab", -5.0], ["a b", -0.1], ["\u2581\u2581", -0.1]]
    strings = ["a", "aa", "a b", "ab", "aab b", "\u2581\u2581a", "a\u2581b", "xyz", "axa xx"]
    assert open_pair(pieces, "A").differences(strings) == []


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_what_a_prefix_emits_is_the_beginning_of_the_whole(small, pipeline):
    pair, rng = small(pipeline), random.Random(5)
    checked = 0
    for text in texts.mixtures(2000, 6):
        whole = ids_of(pair.fast, text)
        budget = rng.choice((1, 2, 5, 20, 400))
        ids, all_of_it = pair.fast.head(text, budget)
        assert ids.tolist() == whole[: budget + 1]
        assert all_of_it == (len(whole) <= budget)
        checked += not all_of_it
    assert checked > 300


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_the_head_of_a_long_text_is_that_of_the_whole_without_reading_it(small, pipeline):
    pair = small(pipeline)
    for body in ("the weather is fine, ", "这是一篇关于天气的短文", "a\u0301b \u0085 "):
        text = body * (400_000 // len(body))
        ids, all_of_it = pair.fast.head(text, 500)
        assert not all_of_it
        assert ids.tolist() == ids_of(pair.library, text)[:501]


def test_threads_do_not_disturb_each_other(small):
    pair = small("A")
    strings = texts.mixtures(400, 8)
    expected = [ids_of(pair.library, text) for text in strings]
    wrong: list[str] = []

    def work(seed: int) -> None:
        order = list(range(len(strings)))
        random.Random(seed).shuffle(order)
        ids, cu = pair.fast.encode([strings[k] for k in order])
        wrong.extend(
            strings[k]
            for n, k in enumerate(order)
            if ids[cu[n] : cu[n + 1]].tolist() != expected[k]
            or ids_of(pair.fast, strings[k]) != expected[k]
        )

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_no_texts_and_empty_texts_give_no_ids(small):
    fast = small("A").fast
    ids, cu = fast.encode([])
    assert (ids.tolist(), cu.tolist()) == ([], [0])
    ids, cu = fast.encode(["", "\x01", ""])
    assert (ids.tolist(), cu.tolist()) == ([], [0, 0, 0, 0])
    assert ids.dtype == cu.dtype == np.int32


def test_a_lone_surrogate_is_refused_naming_the_text(small):
    for strings in (["fine", "bad \ud800"], ["fine"] * 100 + ["\udfff"]):
        with pytest.raises(BadInputError) as raised:
            small("A").fast.encode(strings)
        assert raised.value.param == f"input[{len(strings) - 1}]"


@pytest.mark.parametrize("text", ["</s>", "a <mask> b", "＜/s＞", "＜ｍａｓｋ＞", "<s><pad>"])
@pytest.mark.parametrize("pipeline", PIPELINES)
def test_text_that_spells_a_control_token_stays_text(small, pipeline, text):
    pair = small(pipeline)
    ids = ids_of(pair.fast, text)
    unknown = pair.file.spec["model"]["unk_id"]
    assert ids and not set(ids) & (pair.file.control_ids - {unknown})
