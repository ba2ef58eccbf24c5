"""Errors on the wire and towards callers."""

import inspect

import msgpack
import pytest

from hedgerow_shared import errors
from hedgerow_shared.errors import (
    WIRE_ERRORS,
    BadChunkError,
    BadInputError,
    ClientError,
    HedgerowError,
    OverloadedError,
    Problem,
    RetryableError,
    from_wire,
    to_public,
    to_wire,
)

CLASSES = [
    cls for _, cls in inspect.getmembers(errors, inspect.isclass) if issubclass(cls, HedgerowError)
]


@pytest.mark.parametrize("cls", CLASSES, ids=lambda c: c.__name__)
def test_every_error_comes_back_as_its_own_class(cls):
    error = cls("what went wrong", param="input[3]")
    back = from_wire(msgpack.unpackb(msgpack.packb(to_wire(error))))
    assert type(back) is cls
    assert (back.message, back.param) == ("what went wrong", "input[3]")
    assert back.detail == error.detail


def test_every_error_that_may_travel_has_a_code_of_its_own():
    assert set(WIRE_ERRORS.values()) == set(CLASSES)
    assert len({cls.code for cls in CLASSES}) == len(CLASSES)


def test_client_errors_are_4xx_and_never_retried_and_the_others_are_not_4xx():
    for cls in CLASSES:
        if issubclass(cls, ClientError):
            assert 400 <= cls.status < 429 and not cls.retryable
        if issubclass(cls, RetryableError):
            assert cls.status in (429, 503, 504) and cls.retryable


def test_how_long_to_wait_travels_along():
    back = from_wire(to_wire(OverloadedError("full", retry_after_s=0.4)))
    assert isinstance(back, OverloadedError)
    assert back.retry_after_s == 0.4


def test_an_unknown_code_is_a_server_error_with_its_message():
    back = from_wire({"code": "from_the_future", "message": "hm"})
    assert type(back) is HedgerowError
    assert (back.status, back.message) == (500, "hm")


@pytest.mark.parametrize(
    "body",
    [None, [], "x", {"code": "overloaded", "retry_after_s": -1}, {"message": "m", "param": 3}],
)
def test_what_is_no_error_is_a_bad_chunk(body):
    with pytest.raises(BadChunkError):
        from_wire(body)


def test_callers_see_the_first_problem_and_all_of_them_in_detail():
    error = BadInputError([Problem("input[0]", "is empty"), Problem("model", "is a number")])
    assert to_public(error) == {
        "error": {
            "message": "is empty",
            "type": "invalid_request_error",
            "param": "input[0]",
            "code": "invalid_input",
        },
        "detail": [
            {"param": "input[0]", "message": "is empty"},
            {"param": "model", "message": "is a number"},
        ],
    }
