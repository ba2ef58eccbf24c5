"""Names on the bus."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hedgerow_shared import subjects
from hedgerow_shared.errors import StartupError

BUILDERS = [subjects.embed, subjects.rerank, subjects.tokenize, subjects.chunk, subjects.bulk]


@pytest.mark.parametrize(
    ("alias", "token"),
    [
        ("minilm", "minilm"),
        ("all-MiniLM-L6-v2", "all-MiniLM-L6-v2"),
        ("org/name", "org-name"),
        ("v1.5 large", "v1-5-large"),
        ("a\tb\nc", "a-b-c"),
    ],
)
def test_an_alias_becomes_one_token(alias, token):
    assert subjects.model_token(alias) == token


@given(st.text(min_size=1, max_size=20))
def test_no_alias_changes_the_number_of_tokens_of_a_subject(alias):
    for build in BUILDERS:
        assert build(alias).count(".") == build("x").count(".")
        assert not any(c.isspace() for c in build(alias))


@pytest.mark.parametrize("alias", ["", "a*", ">", "a>b", "a\x00b", "a\x7f"])
def test_an_alias_that_cannot_be_a_subject_is_refused(alias):
    with pytest.raises(StartupError, match="--model"):
        subjects.check_aliases([alias])


def test_aliases_that_become_the_same_token_are_refused_by_name():
    with pytest.raises(StartupError, match=r"'a\.b' and 'a/b'"):
        subjects.check_aliases(["x", "a.b", "a/b"])
    subjects.check_aliases(["x", "a.b", "a-c"])


def test_public_subjects_are_under_the_version_and_internal_ones_are_not():
    for build in (subjects.embed, subjects.rerank, subjects.tokenize):
        assert build("m").startswith(subjects.PUBLIC + ".")
    for internal in (subjects.chunk("m"), subjects.bulk("m"), subjects.worker_chunk("w", "m")):
        assert not internal.startswith(subjects.PUBLIC)
