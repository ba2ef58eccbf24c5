"""The same promises over the real XLM-R vocabulary (250,002 pieces), all three pipelines."""

from __future__ import annotations

import pytest

from hedgerow_gateway.tokenizer.selfcheck import nasty
from tests.gateway.tokenizer import texts
from tests.gateway.tokenizer.conftest import ids_of
from tests.gateway.tokenizer.vocabularies import PIPELINES

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_ten_thousand_strings_have_no_difference(xlmr, pipeline):
    strings = [
        *nasty(),
        *texts.DOCUMENTS,
        *texts.long_words(1),
        *texts.pieces_of_documents(1500, 21),
        *texts.mixtures(7000, 22),
    ]
    assert len(strings) >= 10_000
    assert xlmr(pipeline).differences(strings) == []


def test_the_tables_take_at_most_40_megabytes(xlmr):
    assert xlmr("A").fast.table_bytes <= 40 * 10**6


def test_a_five_megabyte_word_is_encoded_and_its_memory_given_back(xlmr):
    pair = xlmr("A")
    text = "a" * 5_000_000
    before = pair.fast._scratch.block.shape[0]
    ids = ids_of(pair.fast, text)
    assert pair.fast._scratch.block.shape[0] == before
    assert ids == ids_of(pair.library, text)
