"""ColBERT: what is computed as sentence-transformers does, and the settings that are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from sentence_transformers import MultiVectorEncoder
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask

from hedgerow_shared.errors import StartupError
from hedgerow_shared.modelcard import read_card
from hedgerow_shared.ragged import OutputSpec
from tests.engine.conftest import OpenEngine
from tests.engine.st_folders import ids_of, tiny
from tests.engine.tiny import patch_json, patch_json_dir, rows, write_modules

TOKENS = OutputSpec(task="multivector", dtypes=("float32",))
TEXT = "w1 w2 . w9 , !"
ON_TOKENS = {"module_input_name": "token_embeddings"}


def saved(
    tmp_path: Path, *, normalize: bool = True, mask: Any = None, **transformer: Any
) -> tuple[Any, Path]:
    """A MultiVectorEncoder of a tiny BERT, saved and opened again."""
    source = tiny(tmp_path / "source")
    modules: list[Any] = [
        Transformer(str(source), **transformer),
        Dense(64, 16, bias=False, activation_function=torch.nn.Identity(), **ON_TOKENS),
        MultiVectorMask(**mask or {}),
    ]
    modules += [Normalize(**ON_TOKENS)] if normalize else []
    made = MultiVectorEncoder(modules=modules, device="cpu")
    made.save_pretrained(str(tmp_path / "m"))
    return MultiVectorEncoder(str(tmp_path / "m"), device="cpu"), tmp_path / "m"


@pytest.mark.parametrize("normalize", [True, False], ids=["normalised", "of any length"])
def test_token_vectors_are_those_of_sentence_transformers(
    tmp_path: Path, open_engine: OpenEngine, normalize: bool
) -> None:
    model, folder = saved(tmp_path, normalize=normalize)
    got = rows(open_engine(folder), [ids_of(TEXT)], TOKENS)[0][0]
    assert np.allclose(got, model.encode_document([TEXT])[0], atol=1e-5)
    assert np.allclose(got, model.encode_query([TEXT])[0], atol=1e-5)
    assert np.allclose(np.linalg.norm(got, axis=1), 1, atol=1e-5) is normalize


def pylate(tmp_path: Path, **settings: Any) -> Path:
    """A folder as PyLate saves one, its settings neutral but for `settings`."""
    folder = tiny(tmp_path / "m")
    torch.manual_seed(4)
    shape = {"in_features": 64, "out_features": 16, "bias": False}
    patch_json_dir(
        folder / "1_Dense", **shape, activation_function="torch.nn.modules.linear.Identity"
    )
    save_file({"linear.weight": torch.randn(16, 64)}, folder / "1_Dense" / "model.safetensors")
    write_modules(folder, "Transformer", "Dense")
    modules = json.loads((folder / "modules.json").read_text())
    modules[1]["type"] = "pylate.models.Dense.Dense"
    (folder / "modules.json").write_text(json.dumps(modules))
    neutral = {
        "model_type": "ColBERT",
        "prompts": {},
        "query_prefix": "",
        "document_prefix": "",
        "query_length": None,
        "document_length": None,
        "do_query_expansion": False,
        "attend_to_expansion_tokens": False,
        "skiplist_words": [],
    }
    given = {k: v for k, v in (neutral | settings).items() if v != "absent"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(given))
    return folder


def test_a_folder_of_pylates_gives_vectors_of_length_one(
    tmp_path: Path, open_engine: OpenEngine
) -> None:
    folder = pylate(tmp_path)
    model = MultiVectorEncoder(str(folder), device="cpu")
    got = rows(open_engine(folder), [ids_of(TEXT)], TOKENS)[0][0]
    assert np.allclose(got, model.encode_document([TEXT])[0], atol=1e-5)
    assert np.allclose(got, model.encode_query([TEXT])[0], atol=1e-5)


@pytest.mark.parametrize("model_type", [None, "SentenceTransformer"])
def test_a_folder_that_names_no_kind_gives_what_sentence_transformers_makes_of_it(
    tmp_path: Path, open_engine: OpenEngine, model_type: str | None
) -> None:
    _, folder = saved(tmp_path, normalize=False)
    modules = json.loads((folder / "modules.json").read_text())[:2]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "config_sentence_transformers.json").write_text(
        json.dumps({"model_type": model_type} if model_type else {})
    )
    model = MultiVectorEncoder(str(folder), device="cpu")
    got = rows(open_engine(folder), [ids_of(TEXT)], TOKENS)[0][0]
    assert np.allclose(got, model.encode_document([TEXT])[0], atol=1e-5)


def test_dimensions_of_a_model_that_does_not_normalise_are_cut_and_no_more(
    tmp_path: Path, open_engine: OpenEngine
) -> None:
    _, folder = saved(tmp_path, normalize=False)
    spec = OutputSpec(task="multivector", dtypes=("float32",), dimensions=(16, 8))
    whole, part = rows(open_engine(folder), [ids_of(TEXT)], spec)[0]
    assert np.array_equal(part, whole[:, :8])


REFUSED_OF_PYLATE = {
    "query prefix": ({"query_prefix": "[Q] "}, "query_prefix"),
    "document prefix": ({"document_prefix": "[D] "}, "document_prefix"),
    "query length": ({"query_length": 32}, "query_length"),
    "document length": ({"document_length": 100}, "document_length"),
    "skiplist": ({"skiplist_words": ["."]}, "skiplist_words"),
    "skiplist by default": ({"skiplist_words": "absent"}, "skiplist_words"),
    "expansion": ({"do_query_expansion": True}, "do_query_expansion"),
    "expansion by default": ({"do_query_expansion": "absent"}, "do_query_expansion"),
    "expansion, newer": (
        {"query_expansion": {"strategy": "fixed", "length": 32}},
        "query_expansion",
    ),
}


@pytest.mark.parametrize(
    ("settings", "key"), REFUSED_OF_PYLATE.values(), ids=REFUSED_OF_PYLATE.keys()
)
def test_a_setting_of_pylates_that_is_not_computed_is_refused(
    tmp_path: Path, settings: dict[str, Any], key: str
) -> None:
    file = r"config_sentence_transformers\.json"
    with pytest.raises(StartupError, match=rf"{file}: {key} .*must be") as refused:
        read_card(pylate(tmp_path, **settings))
    assert "\n" not in str(refused.value)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "skiplist": ({"mask": {"skiplist_words": ["."]}}, r"2_MultiVectorMask/config\.json: skiplist"),
    "kept tokens": ({"mask": {"keep_only_token_ids": [6]}}, r"config\.json: keep_only_token_ids"),
    "query length": ({"query_length": 12}, r"sentence_bert_config\.json: query_length"),
    "document length": ({"document_length": 12}, r"sentence_bert_config\.json: document_length"),
    "expansion": (
        {"query_expansion": {"strategy": "fixed", "length": 12}},
        r"sentence_bert_config\.json: query_expansion",
    ),
}


@pytest.mark.parametrize(("settings", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_a_setting_of_sentence_transformers_that_is_not_computed_is_refused(
    tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    _, folder = saved(tmp_path, **settings)
    with pytest.raises(StartupError, match=message) as refused:
        read_card(folder)
    assert "\n" not in str(refused.value)


def test_a_length_that_cuts_nothing_is_taken(tmp_path: Path) -> None:
    _, folder = saved(tmp_path, document_length=130, query_length=500)
    assert read_card(folder).max_seq_len == 130


def test_a_normalize_that_touches_no_token_is_refused(tmp_path: Path) -> None:
    _, folder = saved(tmp_path)
    patch_json(folder / "3_Normalize" / "config.json", module_input_name="sentence_embedding")
    with pytest.raises(StartupError, match=r"3_Normalize/config\.json: module_input_name must be"):
        read_card(folder)
