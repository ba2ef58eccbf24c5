"""Ids, specials, truncation and reports, with the `tokenizers` library as the oracle."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer as HfTokenizer

from hedgerow_gateway.pool import INLINE_CHARS, SlicePool
from hedgerow_gateway.tokenizer import open_tokenizer
from hedgerow_gateway.tokenizer.assemble import pair_lengths
from hedgerow_gateway.tokenizer.encoded import Encoded, from_ids, join
from hedgerow_gateway.tokenizer.file import read_file
from hedgerow_gateway.tokenizer.hf import HfEncoder
from hedgerow_gateway.tokenizer.prefix import cuttable, prefix_ids, worth_cutting
from hedgerow_shared.errors import BadInputError, StartupError
from hedgerow_shared.modelcard import Module, Pooling, read_card
from tests.gateway.conftest import DOCS, TRAINERS, train_wordpiece, write_model

TEXTS = ["hello", " x ", "a  b", "naïve café", "你好 world", "tab\tnew\nline", "?", "word " * 90]
FAMILIES = list(TRAINERS)


def oracle(folder: Path) -> HfTokenizer:
    library = HfTokenizer.from_file(str(folder / "tokenizer.json"))
    library.no_truncation()
    library.no_padding()
    return library


@pytest.mark.parametrize("family", FAMILIES)
def test_ids_are_those_of_the_library_with_its_own_specials(toy_folders, family):
    tokenizer = open_tokenizer(read_card(toy_folders[family]), log=print)
    encoded = tokenizer.encode(TEXTS, limit=10_000)
    expected = [e.ids for e in oracle(toy_folders[family]).encode_batch(TEXTS)]
    got = [encoded.batch(i, i + 1, None).input_ids.tolist() for i in range(len(TEXTS))]
    assert got == expected
    assert encoded.used.tolist() == encoded.seen.tolist() == [len(ids) for ids in expected]


@pytest.mark.parametrize("family", FAMILIES)
def test_many_texts_in_several_calls_give_the_ids_of_one(toy_folders, family, monkeypatch):
    given = []
    monkeypatch.setattr("hedgerow_gateway.tokenizer.hf.give_way", lambda: given.append(1))
    texts = [*TEXTS, "", "x" * 9000, *(f"{text} {i}" for i, text in enumerate(TEXTS * 200))]
    ids, cu = HfEncoder(read_file(read_card(toy_folders[family]))).encode(texts)
    library = oracle(toy_folders[family])
    library.encode_special_tokens = True
    expected = [e.ids for e in library.encode_batch(texts, add_special_tokens=False)]
    assert [ids[a:b].tolist() for a, b in pairwise(cu.tolist())] == expected
    assert len(given) >= sum(map(len, texts)) // 4096


@pytest.mark.parametrize("count", [1, 2, 60])
def test_only_what_is_encoded_off_the_event_loop_gives_its_core_away(
    toy_folders, count, monkeypatch
):
    given: list[int] = []
    monkeypatch.setattr("hedgerow_gateway.giveway._yield", lambda: given.append(1))
    encoder = HfEncoder(read_file(read_card(toy_folders["wordpiece"])))
    texts = ["a" * (INLINE_CHARS // count)] * count
    prompted = [f"{'p' * 400} {text}" for text in texts]  # longer than what the pool measured

    async def encode() -> None:
        await SlicePool(1).encode(texts, lambda some: encoded_of(encoder, prompted[: len(some)]))

    asyncio.run(encode())
    assert not given
    asyncio.run(SlicePool(1).encode(["a" * 9000] * 3, lambda some: encoded_of(encoder, some)))
    assert given


def encoded_of(encoder: HfEncoder, texts: Sequence[str]) -> Encoded:
    ids, cu = encoder.encode(texts)
    return Encoded(ids, cu, np.diff(cu), np.zeros(len(texts), np.bool_))


def test_minilm_is_not_cut_or_padded_to_128_by_its_own_file(minilm_card):
    tokenizer = open_tokenizer(minilm_card, log=print)
    assert tokenizer.encode(["word " * 200], limit=256).used.tolist() == [202]
    assert tokenizer.encode(["word"], limit=256).used.tolist() == [3]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("truncate", ["end", "start"])
def test_truncation_keeps_the_specials_and_the_asked_end(toy_folders, family, truncate):
    tokenizer = open_tokenizer(read_card(toy_folders[family]), log=print)
    library = oracle(toy_folders[family])
    library.enable_truncation(20, direction={"end": "right", "start": "left"}[truncate])
    encoded = tokenizer.encode(TEXTS, limit=20, truncate=truncate)
    got = [encoded.batch(i, i + 1, None).input_ids.tolist() for i in range(len(TEXTS))]
    assert got == [e.ids for e in library.encode_batch(TEXTS)]
    assert encoded.seen[-1] > encoded.used[-1] == 20


def test_truncate_none_leaves_long_texts_whole_and_says_how_long(toy_folders):
    tokenizer = open_tokenizer(read_card(toy_folders["wordpiece"]), log=print)
    encoded = tokenizer.encode(["word " * 90], limit=20, truncate="none")
    assert encoded.used[0] == encoded.seen[0] > 20


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("limit", [12, 13, 30, 400])
def test_pairs_are_cut_like_the_library_cuts_longest_first(toy_folders, family, limit):
    tokenizer = open_tokenizer(read_card(toy_folders[family]), log=print)
    library = oracle(toy_folders[family])
    library.enable_truncation(limit, strategy="longest_first")
    for query in ("a short query", DOCS[3][:600]):
        encoded = tokenizer.encode_pairs(query, TEXTS, limit=limit)
        expected = library.encode_batch([(query, text) for text in TEXTS])
        for i, pair in enumerate(expected):
            assert encoded.batch(i, i + 1, None).input_ids.tolist() == pair.ids
            if family == "wordpiece":
                assert encoded.pair_start[i] == pair.type_ids.index(1)
        if family != "wordpiece":
            assert not encoded.pair_start.size


@pytest.mark.parametrize("budget", range(1, 9))
def test_pair_lengths_never_exceed_the_budget_and_never_grow(budget):
    for first in range(12):
        for second in range(12):
            a, b = pair_lengths(first, second, budget)
            assert a <= first and b <= second and a + b <= max(budget, 0)
            assert a + b == min(first + second, budget)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_long_text_read_only_in_part_gives_the_same_ids(toy_folders, family):
    file = read_file(read_card(toy_folders[family]))
    encoder, rng = HfEncoder(file), random.Random(5)
    assert cuttable(file)
    odd = [
        "é\u0301",
        "ͺ",
        "´",
        "\u0600",
        "\u200b",
        "1",
        "'s",
        "  ",
        "\n",
        "नमस्ते",
        "<think>",
        "ﬁ\u0301",
    ]
    partial = 0
    for _ in range(80):
        words = rng.choice(DOCS).split(" ") * 3
        text = "".join(w + (rng.choice(odd) if rng.random() < 0.3 else "") + " " for w in words)
        budget = rng.choice([5, 20, 60])
        if worth_cutting(text, budget):
            ids, whole = prefix_ids(encoder, text, budget)
            assert ids[:budget].tolist() == encoder.encode([text])[0][:budget].tolist()
            partial += not whole
    assert partial > 20


def test_a_cut_text_reports_at_least_how_many_tokens_it_had(toy_folders):
    tokenizer = open_tokenizer(read_card(toy_folders["wordpiece"]), log=print)
    encoded = tokenizer.encode(["short", "word " * 50_000], limit=20)
    assert encoded.at_least.tolist() == [False, True]
    assert encoded.used.tolist()[1] == 20
    assert encoded.seen[1] > 20


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "text",
    [
        "</s>",
        "[SEP]",
        "<|endoftext|>",
        "a[SEP]b </s> <mask>x",
        "＜/s＞",
        "［ＳＥＰ］",
        "<|im_start|>user",
    ],
)
def test_control_tokens_in_user_text_stay_text(toy_folders, family, text):
    file = read_file(read_card(toy_folders[family]))
    library = oracle(toy_folders[family])
    unknown = {library.token_to_id(t) for t in ("[UNK]", "<unk>")}
    ids = set(HfEncoder(file).encode([text])[0].tolist())
    assert ids and not ids & (file.control_ids - unknown)


def test_a_prompt_is_counted_in_tokens_with_the_leading_special(toy_folders):
    tokenizer = open_tokenizer(read_card(toy_folders["wordpiece"]), log=print)
    bare = oracle(toy_folders["wordpiece"]).encode("query: ", add_special_tokens=False).ids
    encoded = tokenizer.encode(["hello", "word " * 90], limit=30, prompt="query: ")
    assert encoded.prompt_len.tolist() == [len(bare) + 1] * 2
    assert encoded.batch(0, 1, None).input_ids.tolist()[1 : len(bare) + 1] == bare


@pytest.mark.parametrize("truncate", ["start", "end"])
def test_a_prompt_that_leaves_nothing_of_the_text_is_refused(toy_folders, truncate):
    tokenizer = open_tokenizer(read_card(toy_folders["wordpiece"]), log=print)
    with pytest.raises(BadInputError, match="nothing of the text") as raised:
        tokenizer.encode(["one", "two"], limit=16, prompt="w " * 100, truncate=truncate)
    assert raised.value.problems[0].param == "prompt"
    assert (tokenizer.encode(["x"], limit=16, prompt="w " * 100, truncate="none").seen > 16).all()


def test_truncating_the_start_keeps_the_prompt(toy_folders):
    tokenizer = open_tokenizer(read_card(toy_folders["wordpiece"]), log=print)
    bare = oracle(toy_folders["wordpiece"]).encode("query: ", add_special_tokens=False).ids
    encoded = tokenizer.encode(["word " * 90], limit=30, prompt="query: ", truncate="start")
    assert encoded.input_ids.tolist()[1 : len(bare) + 1] == bare
    assert encoded.used.tolist() == [30]


def test_a_second_text_is_told_apart_where_the_family_does_without_a_key(tmp_path):
    folder = write_model(tmp_path / "m", train_wordpiece(), type_vocab_size=None)
    assert open_tokenizer(read_card(folder), log=print).specials.typed
    folder = write_model(tmp_path / "m", train_wordpiece(), type_vocab_size=1)
    assert not open_tokenizer(read_card(folder), log=print).specials.typed


def test_a_last_token_model_gets_the_end_token_its_file_forgot(toy_folders):
    card = read_card(toy_folders["bpe"])
    end = 0
    card = replace(
        card,
        config={**card.config, "eos_token_id": end},
        pooling=Pooling(("lasttoken",)),
        modules=(Module("pooling", card.folder, {}),),
    )
    assert open_tokenizer(card, log=print).encode(["hi there"], limit=64).input_ids[-1] == end
    plain = open_tokenizer(read_card(toy_folders["bpe"]), log=print)
    assert plain.encode(["hi there"], limit=64).input_ids[-1] != end


def test_do_lower_case_lowers_before_anything_else(toy_folders):
    card = replace(read_card(toy_folders["bpe"]), do_lower_case=True)
    tokenizer = open_tokenizer(card, log=print)
    shout, whisper = tokenizer.encode(["HELLO"], limit=64), tokenizer.encode(["hello"], limit=64)
    assert shout.input_ids.tolist() == whisper.input_ids.tolist()


def test_slices_join_to_the_whole(toy_folders):
    tokenizer = open_tokenizer(read_card(toy_folders["wordpiece"]), log=print)
    whole = tokenizer.encode(TEXTS, limit=16, prompt="query: ")
    parts = [tokenizer.encode(TEXTS[i : i + 3], limit=16, prompt="query: ") for i in (0, 3, 6)]
    joined = join(parts)
    for name in ("input_ids", "cu_seqlens", "seen", "at_least", "prompt_len"):
        assert np.array_equal(getattr(joined, name), getattr(whole, name))


def test_callers_ids_are_taken_as_they_are_and_cut_at_the_limit():
    encoded = from_ids([[5, 6], list(range(100))], 10)
    assert encoded.input_ids.tolist() == [5, 6, *range(10)]
    assert encoded.seen.tolist() == [2, 100]
    assert encoded.used.tolist() == [2, 10]


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ("missing", ["tokenizer.json", "missing"]),
        ("garbage", ["tokenizer.json", "JSON"]),
        ({"model": None}, ["tokenizer.json", "model"]),
        ({"model": {"type": "Magic", "vocab": {"a": 0}}}, ["tokenizer.json", "Magic"]),
        ({"model": {"type": "BPE", "vocab": {}}}, ["tokenizer.json", "model.vocab"]),
        ({"pre_tokenizer": {"type": "Nonsense"}}, ["tokenizer.json"]),
    ],
    ids=["missing", "garbage", "no-model", "unknown-type", "empty-vocab", "unknown-part"],
)
def test_an_unusable_file_is_one_line_naming_file_and_field(toy_folders, tmp_path, change, names):
    folder = tmp_path / "model"
    shutil.copytree(toy_folders["wordpiece"], folder)
    file = folder / "tokenizer.json"
    if change == "missing":
        file.unlink()
    elif change == "garbage":
        file.write_text("{not json")
    else:
        file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(StartupError) as raised:
        open_tokenizer(read_card(folder), log=print)
    text = str(raised.value)
    assert "\n" not in text
    assert all(name in text for name in names)
