"""Bodies of the bulk routes: each mistake is named by its path."""

from __future__ import annotations

import pytest

from hedgerow_gateway.bulk.request import read_bulk, read_job, read_page
from hedgerow_gateway.models import Models, open_models
from hedgerow_gateway.schema import Rules
from hedgerow_shared.errors import BadInputError, TokenIdsError, UnknownModelError
from hedgerow_shared.ragged import OutputSpec
from tests.bulk.bulk_stack import MODEL, WORDS, make_model


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    folder = make_model(tmp_path_factory.mktemp("bulk") / "model")
    return open_models([f"{MODEL}={folder}"], [], log=lambda _: None)


ROW = {"id": "a", "text": "w1"}
BAD = {
    "nothing": ({}, ["rows"]),
    "no rows": ({"rows": []}, ["rows"]),
    "rows of text": ({"rows": ["a", "b"]}, ["rows[0]", "rows[1]"]),
    "too many rows": ({"rows": [ROW] * 11}, ["rows"]),
    "no id": ({"rows": [{"text": "w1"}]}, ["rows[0].id"]),
    "a flag for an id": ({"rows": [{"id": True, "text": "w1"}]}, ["rows[0].id"]),
    "empty id": ({"rows": [{"id": "", "text": "w1"}]}, ["rows[0].id"]),
    "long id": ({"rows": [{"id": "x" * 513, "text": "w1"}]}, ["rows[0].id"]),
    "large id": ({"rows": [{"id": 2**63, "text": "w1"}]}, ["rows[0].id"]),
    "an id twice": ({"rows": [ROW, ROW]}, ["rows[1].id"]),
    "no text": ({"rows": [{"id": 1}]}, ["rows[0].text"]),
    "empty text": ({"rows": [ROW, {"id": 2, "text": ""}]}, ["rows[1].text"]),
    "text and ids": ({"rows": [ROW, {"id": 2, "token_ids": [7]}]}, ["rows[1].text"]),
    "job": ({"rows": [ROW], "job": "a.b"}, ["job"]),
    "dtype": ({"rows": [ROW], "dtype": "int4"}, ["dtype"]),
    "dimensions": ({"rows": [ROW], "dimensions": 33}, ["dimensions"]),
    "last": ({"rows": [ROW], "last": "yes"}, ["last"]),
    "several": ({"rows": [3, {"id": 1}], "dtype": 4}, ["rows[0]", "rows[1].text", "dtype"]),
}


@pytest.mark.parametrize("case", BAD, ids=str)
def test_every_wrong_field_is_named(models, case):
    body, paths = BAD[case]
    with pytest.raises(BadInputError) as caught:
        read_bulk(body, models, Rules(max_inputs=10))
    assert [problem.param for problem in caught.value.problems] == paths


def test_an_unknown_model_is_told_apart_from_a_wrong_body(models):
    with pytest.raises(UnknownModelError):
        read_bulk({"rows": [ROW], "model": "other"}, models, Rules())


def test_token_ids_are_taken_only_where_the_server_was_told_to(models):
    body = {"rows": [{"id": 1, "token_ids": [7, 8]}, {"id": 2, "token_ids": [9]}]}
    with pytest.raises(TokenIdsError):
        read_bulk(body, models, Rules())
    request = read_bulk(body, models, Rules(native_ids=True))
    assert (request.ids, request.texts, request.token_ids) == ([1, 2], [], [[7, 8], [9]])
    body["rows"][1] = {"id": 2, "token_ids": [9, WORDS + 5]}
    with pytest.raises(BadInputError) as caught:
        read_bulk(body, models, Rules(native_ids=True))
    assert caught.value.param == "rows[1].token_ids[1]"


def test_a_good_body_says_what_is_wanted_of_each_row(models):
    body = {"rows": [ROW], "dtype": "binary", "dimensions": 20, "last": True, "job": "re-index_7"}
    request = read_bulk(body, models, Rules(), MODEL)
    assert request.output == OutputSpec(dtypes=("binary",), dimensions=(20,))
    assert (request.row_bytes, request.last, request.job) == (3, True, "re-index_7")


def test_a_job_without_a_name_gets_one_and_the_end_of_a_job_needs_no_rows(models):
    first, second = (read_bulk({"rows": [ROW]}, models, Rules()) for _ in range(2))
    assert first.job != second.job
    assert read_bulk({"last": True, "job": "j"}, models, Rules()).ids == []


def test_a_page_is_asked_for_in_json_or_in_a_query(models):
    for start, limit, release in ((5, 10, True), ("5", "10", "true")):
        page = read_page({"job": "j", "from": start, "limit": limit, "release": release})
        assert (page.start, page.limit, page.release) == (5, 10, True)
    assert read_page({"job": "j"}).start == 1
    with pytest.raises(BadInputError) as caught:
        read_page({"job": "j", "from": "-1", "limit": 0, "release": "maybe"})
    assert [p.param for p in caught.value.problems] == ["from", "limit", "release"]
    for digits in ("9" * 5000, "9" * 30):
        with pytest.raises(BadInputError) as caught:
            read_page({"job": "j", "from": digits, "limit": digits})
        assert [p.param for p in caught.value.problems] == ["from", "limit"]
    for body in ({}, {"job": 3}, {"job": "a b"}):
        with pytest.raises(BadInputError):
            read_job(body)
