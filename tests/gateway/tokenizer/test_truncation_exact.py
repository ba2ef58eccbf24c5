"""Reading only the beginning of a long text gives the ids of tokenize-all-then-cut."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import numpy as np
import pytest

from hedgerow_gateway.tokenizer import prefix
from hedgerow_gateway.tokenizer.file import read_file
from hedgerow_gateway.tokenizer.hf import HfEncoder
from hedgerow_gateway.tokenizer.specials import Specials
from hedgerow_gateway.tokenizer.tokenizer import Tokenizer
from hedgerow_shared.modelcard import read_card
from tests.gateway.tokenizer import texts
from tests.gateway.tokenizer.conftest import ids_of

MARKS = [chr(c) for c in (*range(0x2B0, 0x370), *range(0x590, 0x700), *range(0x900, 0xE80, 3))]
ODD = [*"ͺ´¨ゝﾞﾟ1١Ⅷ①ａﬀǆİıſKªºʹʼˢ", "'s", "'S", "\u2581", "\ufffd", *MARKS]


def library(family: str, toy_folders: dict[str, Path], small, minilm_folder) -> HfEncoder:
    if family.startswith("unigram-"):
        return small(family[-1]).library
    folder = minilm_folder if family == "minilm" else toy_folders[family]
    file = read_file(read_card(folder))
    assert prefix.cuttable(file)
    return HfEncoder(file)


@pytest.fixture(params=["wordpiece", "minilm", "bpe", "unigram-A", "unigram-B", "unigram-C"])
def encoder(request, toy_folders, small, minilm_folder) -> HfEncoder:
    return library(request.param, toy_folders, small, minilm_folder)


def allowed_cuts(text: str) -> list[int]:
    return [at for at in range(len(text)) if prefix.safe_cut(text, 0, at + 1) == at]


def test_wherever_the_rule_cuts_the_parts_give_the_ids_of_the_whole(encoder):
    rng, checked = random.Random(3), 0
    for _ in range(1500):
        text = "".join(
            rng.choice((*texts.TROUBLE, *ODD, "", "", ""))
            + rng.choice((*texts.WORDS[:2000], "", ""))
            + rng.choice((*texts.TROUBLE, *ODD, "", "", ""))
            + rng.choice((" ", " ", "  ", ""))
            for _ in range(rng.randint(2, 8))
        )
        cuts = allowed_cuts(text)
        parts = [part for at in cuts for part in (text[:at], text[at:])]
        ids, cu = encoder.encode([text, *parts])
        of = [ids[a:b].tolist() for a, b in itertools.pairwise(cu)]
        for k, at in enumerate(cuts):
            assert of[1 + 2 * k] + of[2 + 2 * k] == of[0], ascii((text[:at], text[at:]))
        checked += len(cuts)
    assert checked > 500


class Counting:
    """Counts the characters another encoder is given."""

    name = "counting"

    def __init__(self, inner) -> None:
        self.inner, self.chars = inner, 0

    def encode(self, strings):
        self.chars += sum(map(len, strings))
        return self.inner.encode(strings)


@pytest.mark.parametrize("budget", [254, 510])
def test_a_megabyte_cut_to_the_budget_costs_less_than_two_texts_of_that_length(encoder, budget):
    text = (" ".join(texts.DOCUMENTS) * 3)[:1_000_000]
    full = encoder.encode([text])[0]
    low, high = 0, 40 * budget
    while low < high:  # characters that a text of `budget` tokens has
        middle = (low + high) // 2
        enough = encoder.encode([text[:middle]])[0].shape[0] >= budget
        low, high = (low, middle) if enough else (middle + 1, high)
    counting = Counting(encoder)
    ids, whole = prefix.prefix_ids(counting, text, budget)
    assert not whole
    assert ids[:budget].tolist() == full[:budget].tolist()
    assert counting.chars <= 2 * low


@pytest.mark.parametrize("pipeline", ["A", "B", "C"])
def test_a_cut_text_has_the_librarys_ids_and_says_how_much_it_saw(small, pipeline):
    pair = small(pipeline)
    specials = Specials(prefix=np.array([1], np.int32), suffix=np.array([3], np.int32))
    tokenizer = Tokenizer(pair.fast, specials, cuttable=True)
    strings = [*texts.pieces_of_documents(30, 5), *texts.long_words(4), *texts.mixtures(100, 9)]
    for limit in (8, 64, 512):
        encoded = tokenizer.encode(strings, limit=limit)
        for k, text in enumerate(strings):
            whole = ids_of(pair.library, text)
            start, stop = encoded.cu_seqlens[k : k + 2]
            assert encoded.input_ids[start:stop].tolist() == [1, *whole[: limit - 2], 3]
            if encoded.at_least[k]:
                assert limit < encoded.seen[k] <= len(whole) + 2
            else:
                assert encoded.seen[k] == len(whole) + 2


@pytest.mark.parametrize("budget", [30, 254])
def test_a_text_that_was_not_read_to_its_end_never_looks_as_if_it_fitted(encoder, budget):
    """One word of w characters often: the pieces end exactly where the budget is used up."""
    specials = Specials(prefix=np.array([1], np.int32), suffix=np.array([3], np.int32))
    tokenizer = Tokenizer(encoder, specials, cuttable=True)
    for word in ("word ", "the ", "a ", "paper "):
        for count in (budget - 1, budget, budget + 1, 8 * budget, 20_000):
            text = (word * count).strip()
            whole = encoder.encode([text])[0].shape[0] + specials.single
            for truncate in ("end", "none"):
                encoded = tokenizer.encode([text, "short"], limit=budget + 2, truncate=truncate)
                fits = whole <= budget + 2
                assert (encoded.seen[0] <= budget + 2) == fits, (word, count)
                assert bool(encoded.at_least[0]) <= (not fits)
            pairs = tokenizer.encode_pairs("the", [text], limit=budget)
            needs = whole - 2 + encoder.encode(["the"])[0].shape[0] + specials.pair
            assert bool(pairs.truncated[0]) == (needs > budget), (word, count)
        cut = tokenizer.encode([(word * 20_000).strip()], limit=budget + 2)
        assert cut.truncated[0] and cut.at_least[0] and cut.seen[0] > cut.used[0] == budget + 2


def test_none_reads_no_more_of_a_huge_text_than_shows_that_it_is_too_long(encoder):
    counting = Counting(encoder)
    encoded = Tokenizer(counting, Specials(), cuttable=True).encode(
        ["word " * 400_000], limit=256, truncate="none"
    )
    assert encoded.at_least[0] and encoded.seen[0] > 256
    assert counting.chars < 10_000


def test_the_unigram_encoder_shows_one_id_more_than_the_budget_when_it_stops(small):
    fast = small("A").fast
    for count in (40, 41, 5_000):
        ids, whole = fast.head("word " * count, 40)
        expected = fast.encode(["word " * count])[0]
        assert ids.tolist() == expected[:41].tolist()
        assert whole == (expected.shape[0] <= 40)
