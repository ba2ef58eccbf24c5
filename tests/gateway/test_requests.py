"""Bodies and requests: what is read, and that every wrong field is named in one answer."""

from __future__ import annotations

import codecs
import json
from dataclasses import replace
from pathlib import Path

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hedgerow_gateway.bigjson import decode_large
from hedgerow_gateway.bodies import decode, encode, form_of
from hedgerow_gateway.call import read_call
from hedgerow_gateway.core import check_fit, input_path
from hedgerow_gateway.failures import error_body
from hedgerow_gateway.models import Models, ServedModel
from hedgerow_gateway.schema import Rules, read_embed, read_rerank, read_tokenize
from hedgerow_gateway.templates import choose_prompt
from hedgerow_gateway.tokenizer import open_tokenizer
from hedgerow_gateway.tokenizer.encoded import from_ids
from hedgerow_shared.errors import BadInputError, HedgerowError, TokenIdsError, UnknownModelError
from hedgerow_shared.modelcard import read_card
from tests.gateway.bad_input import CASES, raw

READERS = {"embed": read_embed, "rerank": read_rerank, "tokenize": read_tokenize}
RULES = Rules()
NATIVE = Rules(native_ids=True, max_inputs=4)


@pytest.fixture(scope="module")
def models(toy_folders: dict[str, Path]) -> Models:
    card = read_card(toy_folders["wordpiece"])
    prompts = replace(card, prompts={"query": "query: ", "passage": "passage: "})
    scorer = replace(card, num_labels=1, dimension=0)
    classifier = replace(card, num_labels=3, dimension=0)
    tokenizer = open_tokenizer(card, log=print)
    found = {"toy": card, "prompted": prompts, "scorer": scorer, "classifier": classifier}
    return Models(
        [
            ServedModel(alias=a, card=c, tokenizer=tokenizer, fingerprint="f")
            for a, c in found.items()
        ]
    )


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_wrong_request_names_every_fault_with_its_code(models, case):
    route, body, status, code, paths = CASES[case]
    data = raw(body)
    with pytest.raises(HedgerowError) as raised:
        request = READERS[route](decode(data, form_of(data, None)), models, RULES)
        encoded = request.model.tokenizer.encode(
            request.texts, limit=request.model.limit, truncate=request.truncate
        )
        check_fit(encoded, request.model.limit, request.truncate, input_path(decode(data, "json")))
    error = error_body(raised.value)
    assert (raised.value.status, error["error"]["code"]) == (status, code)
    found = [d["param"] for d in error["detail"]] or [error["error"]["param"]]
    assert found == paths
    json.dumps(error)


def test_the_headline_names_the_first_fault_and_counts_the_rest(models):
    with pytest.raises(BadInputError) as raised:
        read_embed({"input": ["a", 1, ""]}, models, RULES)
    text = error_body(raised.value)["error"]["message"]
    assert text == "input[1]: must be text, found a number (and 1 more, see detail)"


def test_more_than_a_hundred_faults_are_cut_short(models):
    with pytest.raises(BadInputError) as raised:
        read_embed({"input": ["a"] + [1] * 300}, models, RULES)
    assert len(raised.value.problems) == 101
    assert raised.value.problems[-1].message == "and 200 more"


def test_token_ids_are_refused_by_naming_the_client_that_sends_them(models):
    with pytest.raises(TokenIdsError) as raised:
        read_embed({"input": [[64], [65]]}, models, RULES)
    assert "check_embedding_ctx_length=False" in raised.value.message
    assert "--token-ids native" in raised.value.message


def test_an_unknown_model_is_answered_with_the_aliases_there_are(models):
    with pytest.raises(UnknownModelError) as raised:
        read_embed({"input": "a", "model": "gpt"}, models, RULES)
    assert all(alias in raised.value.message for alias in models.aliases)


def test_a_subject_names_the_model_and_the_body_must_not_disagree(models):
    assert read_embed({"input": "a"}, models, RULES, "prompted").model.alias == "prompted"
    assert read_embed({"input": "a", "model": "toy"}, models, RULES, "toy").model.alias == "toy"
    with pytest.raises(BadInputError):
        read_embed({"input": "a", "model": "toy"}, models, RULES, "prompted")


def test_nulls_and_unknown_fields_are_as_good_as_absent(models):
    request = read_embed(
        {"input": "a", "model": None, "dimensions": None, "user": "me", "extra": [1]}, models, RULES
    )
    assert (request.model.alias, request.dimensions, request.width) == ("toy", None, 8)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("END", "end"),
        ("start", "start"),
        ("None", "none"),
        (True, "end"),
        (False, "none"),
        (None, "end"),
    ],
)
def test_truncate_is_read_in_every_spelling(models, value, expected):
    assert read_embed({"input": "a", "truncate": value}, models, RULES).truncate == expected


def test_native_token_ids_are_one_input_or_several(models):
    assert read_embed({"input": [5, 6]}, models, NATIVE).ids == [[5, 6]]
    assert read_embed({"input": [[5], [6, 7]]}, models, NATIVE).ids == [[5], [6, 7]]


@pytest.mark.parametrize(
    ("value", "paths"),
    [
        ([5, -1], ["input[1]"]),
        ([5, 10**9], ["input[1]"]),
        ([5, True], ["input[1]"]),
        ([[5], []], ["input[1]"]),
        ([[5], [6, 10**30]], ["input[1][1]"]),
        ([[5], 6], ["input[1]"]),
        ([[5], [6, "a"]], ["input[1][1]"]),
        ([[1]] * 5, ["input"]),
    ],
    ids=["negative", "beyond", "boolean", "empty", "huge", "mixed", "text", "too-many"],
)
def test_native_token_ids_must_belong_to_the_vocabulary(models, value, paths):
    with pytest.raises(BadInputError) as raised:
        read_embed({"input": value}, models, NATIVE)
    assert [p.param for p in raised.value.problems] == paths


def test_rerank_takes_native_ids_for_query_and_documents(models):
    request = read_rerank({"query": [5], "documents": [[6], [7]]}, models, NATIVE)
    assert (request.query_ids, request.ids, request.top_n) == ([5], [[6], [7]], 2)


def test_documents_may_be_objects_with_a_text(models):
    request = read_rerank({"query": "q", "documents": [{"text": "a"}, "b"]}, models, RULES)
    assert request.texts == ["a", "b"]


def test_top_n_zero_and_absent_mean_all(models):
    for extra in ({}, {"top_n": 0}, {"top_n": None}):
        assert (
            read_rerank({"query": "q", "documents": ["a", "b"], **extra}, models, RULES).top_n == 2
        )


@pytest.mark.parametrize("alias", ["scorer", "classifier"])
def test_a_scorer_gives_no_embeddings_and_a_classifier_no_ranking(models, alias):
    with pytest.raises(BadInputError) as raised:
        read_embed({"input": "a", "model": alias}, models, RULES)
    assert "/rerank" in raised.value.message
    if alias == "classifier":
        with pytest.raises(BadInputError):
            read_rerank({"query": "a", "documents": ["b"], "model": alias}, models, RULES)


@pytest.mark.parametrize(
    ("asked", "name", "text"),
    [
        ({"prompt_name": "query"}, "query", "query: "),
        ({"input_type": "search_query"}, "query", "query: "),
        ({"input_type": "document"}, "passage", "passage: "),
        ({"input_type": "clustering"}, None, ""),
        ({"prompt": "Instruct: x\nQuery: "}, "custom", "Instruct: x\nQuery: "),
        ({}, None, ""),
    ],
    ids=["name", "query", "document", "no-such", "custom", "none"],
)
def test_prompts_are_found_by_name_type_or_text(models, asked, name, text):
    prompt = read_embed({"input": "a", "model": "prompted", **asked}, models, RULES).prompt
    assert (prompt.name, prompt.text) == (name, text)


def test_the_cards_default_prompt_is_used_unless_the_caller_says_none(models):
    card = replace(models.get("prompted").card, default_prompt="passage")
    assert choose_prompt(card, name=None, input_type=None, text=None).name == "passage"
    assert choose_prompt(card, name=None, input_type=None, text="").name is None


@pytest.mark.parametrize(
    ("data", "header", "expected"),
    [
        (b'{"a":1}', None, "json"),
        (b"  [1]", None, "json"),
        (msgpack.packb({"a": 1}), None, "msgpack"),
        (msgpack.packb({str(i): i for i in range(20)}), None, "msgpack"),
        (msgpack.packb({str(i): i for i in range(70_000)}), None, "msgpack"),
        (b"\xc1\xff", None, "json"),
        (b"", None, "json"),
        (b'{"a":1}', "application/msgpack", "msgpack"),
        (b'{"a":1}', "Application/JSON; charset=utf-8", "json"),
        (msgpack.packb({"a": 1}), "application/x-www-form-urlencoded", "msgpack"),
    ],
)
def test_the_form_is_told_by_header_or_first_byte(data, header, expected):
    assert form_of(data, header) == expected


@given(st.binary(max_size=200))
def test_garbage_is_never_more_than_bad_input(data):
    try:
        assert isinstance(decode(data, form_of(data, None)), dict)
    except BadInputError as error:
        assert error.message


@given(
    st.dictionaries(st.text(), st.one_of(st.integers(-(2**63), 2**64 - 1), st.text(), st.none()))
)
def test_bodies_survive_both_forms(body):
    assert decode(encode(body, "msgpack"), "msgpack") == body
    assert decode(encode(body, "json"), "json") == body


def test_none_refuses_a_huge_text_and_long_token_ids_alike(models):
    tokenizer = models.get("toy").tokenizer
    with pytest.raises(HedgerowError) as raised:
        encoded = tokenizer.encode(["word " * 50_000], limit=64, truncate="none")
        check_fit(encoded, 64, "none", input_path({"input": "a"}))
    assert raised.value.message == "has more than 64 tokens; the model takes 64"
    with pytest.raises(HedgerowError) as raised:
        check_fit(from_ids([[5] * 65], 64), 64, "none", input_path({"input": [[5]]}))
    assert raised.value.message == "has 65 tokens; the model takes 64"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"query": ["q"], "documents": ["a"]}, "query: must be text, found a list"),
        (
            {"query": "q", "documents": ["b", {"body": "a"}]},
            "documents[1]: must be text, found an object without `text`",
        ),
        (
            {"query": "q", "documents": ["b"], "top_n": 1.5},
            "top_n: must be a whole number, found 1.5",
        ),
    ],
)
def test_a_wrong_rerank_says_what_was_found(models, body, message):
    with pytest.raises(BadInputError) as raised:
        read_rerank(body, models, RULES)
    assert error_body(raised.value)["error"]["message"] == message
    assert raised.value.code == "invalid_input"


def test_a_whole_number_may_be_written_with_a_point(models):
    request = read_embed({"input": "a", "dimensions": 2.0}, models, RULES)
    assert (request.dimensions, type(request.dimensions)) == (2, int)


async def test_a_byte_order_mark_before_json_is_no_fault():
    data = codecs.BOM_UTF8 + b'{"input": "a"}'
    assert decode(data, form_of(data, None)) == {"input": "a"}
    large = codecs.BOM_UTF8 + json.dumps({"input": ["word " * 9] * 20_000}).encode()
    assert await decode_large(large) == {"input": ["word " * 9] * 20_000}


@pytest.mark.parametrize(("value", "expected"), [("true", True), ("1", True), ("False", False)])
def test_partial_is_true_or_false(value, expected):
    headers = {"hedgerow-partial": value}
    assert read_call(headers, "json", ttl_s=1).partial is expected


def test_another_word_for_partial_is_refused():
    with pytest.raises(BadInputError) as raised:
        read_call({"hedgerow-partial": "maybe"}, "json", ttl_s=1)
    assert raised.value.param == "Hedgerow-Partial"
