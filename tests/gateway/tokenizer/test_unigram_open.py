"""The gateway opens a model folder whose vocabulary is a unigram one."""

from __future__ import annotations

import json

import numpy as np
from tokenizers import Tokenizer as HfTokenizer

from hedgerow_gateway.tokenizer import open_tokenizer
from hedgerow_shared.modelcard import read_card
from tests.gateway.tokenizer import texts, vocabularies


def model_folder(folder, pipeline: str):
    document = vocabularies.spec(vocabularies.small_pieces(), pipeline)
    special = {"<s>": 0, "</s>": 2}
    document["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [
            {"SpecialToken": {"id": "<s>", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
            {"SpecialToken": {"id": "</s>", "type_id": 0}},
        ],
        "pair": [
            {"SpecialToken": {"id": "<s>", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
            {"SpecialToken": {"id": "</s>", "type_id": 0}},
            {"SpecialToken": {"id": "</s>", "type_id": 0}},
            {"Sequence": {"id": "B", "type_id": 0}},
            {"SpecialToken": {"id": "</s>", "type_id": 0}},
        ],
        "special_tokens": {
            name: {"id": name, "ids": [number], "tokens": [name]}
            for name, number in special.items()
        },
    }
    (folder / "tokenizer.json").write_text(json.dumps(document))
    config = {"model_type": "xlm-roberta", "hidden_size": 8, "vocab_size": 3000, "pad_token_id": 1}
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 66}))
    return folder


def test_a_models_texts_and_pairs_get_the_librarys_ids_from_the_fast_encoder(
    unigram_cache, tmp_path
):
    folder = model_folder(tmp_path, "A")
    lines: list[str] = []
    tokenizer = open_tokenizer(read_card(folder), log=lines.append)
    assert tokenizer.encoder.name == "unigram"
    library = HfTokenizer.from_file(str(folder / "tokenizer.json"))
    library.enable_truncation(64)
    # Text that spells a control token is text here and a control token in the library.
    plain = [t for t in texts.pieces_of_documents(50, 1) if "<" not in t]
    encoded = tokenizer.encode(plain, limit=64)
    expected = [e.ids for e in library.encode_batch(plain)]
    assert np.split(encoded.input_ids, encoded.cu_seqlens[1:-1])[7].tolist() == expected[7]
    assert encoded.input_ids.tolist() == [i for ids in expected for i in ids]
    pairs = tokenizer.encode_pairs("the weather", plain, limit=64)
    expected = [e.ids for e in library.encode_batch([("the weather", t) for t in plain])]
    assert pairs.input_ids.tolist() == [i for ids in expected for i in ids]
