"""What a model folder says, and whose fault it is when it does not."""

import json

import pytest

from hedgerow_shared.errors import StartupError
from hedgerow_shared.modelcard import read_card

CONFIG = {
    "architectures": ["BertModel"],
    "model_type": "bert",
    "hidden_size": 8,
    "vocab_size": 100,
    "max_position_embeddings": 64,
}
ST = "sentence_transformers.models."
MODULES = [
    {"idx": 0, "name": "0", "path": "", "type": ST + "Transformer"},
    {"idx": 1, "name": "1", "path": "1_Pooling", "type": ST + "Pooling"},
]
NORMALIZE = {"idx": 2, "name": "2", "path": "2_Normalize", "type": ST + "Normalize"}
DENSE = {"idx": 2, "name": "2", "path": "2_Dense", "type": ST + "Dense"}


@pytest.fixture
def make(tmp_path):
    """`make({"config.json": {...}, ...})` writes the files over a small good model."""

    def write(files: dict | None = None):
        for name, content in {
            "config.json": CONFIG,
            "modules.json": MODULES,
            "1_Pooling/config.json": {"pooling_mode_mean_tokens": True},
            "tokenizer.json": {"model": {}},
            **(files or {}),
        }.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if content is None:
                path.unlink(missing_ok=True)
            elif isinstance(content, bytes):
                path.write_bytes(content)
            else:
                path.write_text(json.dumps(content))
        return tmp_path

    return write


def test_minilm_reads_as_its_authors_describe_it(minilm_folder):
    card = read_card(minilm_folder)
    assert (card.architecture, card.model_type) == ("BertModel", "bert")
    assert (card.hidden_size, card.dimension, card.vocab_size) == (384, 384, 30522)
    assert (card.max_seq_len, card.max_positions) == (256, 512)
    assert card.pooling.modes == ("mean",)
    assert card.normalize
    assert not card.is_scorer


@pytest.mark.parametrize(
    ("config", "modes", "include_prompt"),
    [
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, ("mean",), True),
        ({"pooling_mode_cls_token": True, "include_prompt": False}, ("cls",), False),
        (
            {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True},
            ("cls", "mean"),
            True,
        ),
        ({"pooling_mode_lasttoken": True}, ("lasttoken",), True),
        ({"pooling_mode": "mean"}, ("mean",), True),
        ({"pooling_mode": ["max", "cls"], "include_prompt": False}, ("max", "cls"), False),
        ({"pooling_mode": "mean_sqrt_len_tokens"}, ("mean_sqrt_len",), True),
        ({"pooling_mode": "weightedmean"}, ("weightedmean",), True),
    ],
)
def test_both_ways_to_write_a_pooling_are_read(make, config, modes, include_prompt):
    card = read_card(make({"1_Pooling/config.json": config}))
    assert card.pooling.modes == modes
    assert card.pooling.include_prompt is include_prompt
    assert card.dimension == 8 * len(modes)


def test_a_normalize_module_needs_no_folder(make):
    assert not read_card(make()).normalize
    assert read_card(make({"modules.json": [*MODULES, NORMALIZE]})).normalize


def test_vectors_have_length_one_only_where_the_last_module_says_so(make):
    dense = {"2_Dense/config.json": {"in_features": 8, "out_features": 3}}
    assert not read_card(make({**dense, "modules.json": [*MODULES, NORMALIZE, DENSE]})).normalize
    assert read_card(make({**dense, "modules.json": [*MODULES, DENSE, NORMALIZE]})).normalize


def test_mpnet_counts_positions_from_two_whatever_its_padding_is(make):
    config = {**CONFIG, "model_type": "mpnet", "pad_token_id": 0}
    assert read_card(make({"config.json": config})).max_positions == 62


def test_a_text_config_that_is_null_is_none(make):
    assert read_card(make({"config.json": {**CONFIG, "text_config": None}})).hidden_size == 8


def test_a_dense_module_sets_the_dimension(make):
    files = {
        "modules.json": [*MODULES, DENSE],
        "2_Dense/config.json": {"in_features": 8, "out_features": 3},
    }
    assert read_card(make(files)).dimension == 3


def test_a_plain_transformer_folder_is_mean_pooled(make):
    card = read_card(make({"modules.json": None}))
    assert card.modules == ()
    assert card.pooling.modes == ("mean",)


@pytest.mark.parametrize(
    ("sbert", "asked", "expected"),
    [
        (None, None, 64),
        ({"max_seq_length": 32}, None, 32),
        ({"max_seq_length": 1000}, None, 64),
        ({"max_seq_length": None}, None, 64),
        ({"max_seq_length": 32}, 48, 48),
        ({"max_seq_length": 32}, 1, 1),
    ],
)
def test_the_length_is_what_was_asked_else_the_cards_else_what_the_weights_allow(
    make, sbert, asked, expected
):
    folder = make({"sentence_bert_config.json": sbert})
    assert read_card(folder, max_seq_len=asked).max_seq_len == expected


@pytest.mark.parametrize("asked", [0, -1, 65])
def test_a_length_the_weights_do_not_allow_is_refused(make, asked):
    with pytest.raises(StartupError, match=f"--max-seq-len {asked}.*64"):
        read_card(make(), max_seq_len=asked)


def test_roberta_counts_positions_from_behind_the_padding(make):
    config = {**CONFIG, "model_type": "xlm-roberta", "max_position_embeddings": 514}
    assert read_card(make({"config.json": {**config, "pad_token_id": 1}})).max_positions == 512


@pytest.mark.parametrize(
    ("config", "labels"),
    [
        ({"architectures": ["BertForSequenceClassification"], "id2label": {"0": "L"}}, ("L",)),
        (
            {"architectures": ["BertForSequenceClassification"], "id2label": {"1": "b", "0": "a"}},
            ("a", "b"),
        ),
        (
            {"architectures": ["BertForSequenceClassification"], "num_labels": 3},
            ("LABEL_0", "LABEL_1", "LABEL_2"),
        ),
        ({}, ()),
    ],
)
def test_labels_are_in_the_order_of_their_numbers(make, config, labels):
    card = read_card(make({"config.json": {**CONFIG, **config}, "modules.json": None}))
    assert card.labels == labels
    assert card.is_scorer is bool(labels)
    assert (card.dimension == 0) is bool(labels)


def test_prompts_and_case_and_matryoshka_are_read(make):
    card = read_card(
        make(
            {
                "config.json": {**CONFIG, "matryoshka_dimensions": [4, 8]},
                "config_sentence_transformers.json": {
                    "prompts": {"query": "query: ", "passage": ""},
                    "default_prompt_name": "query",
                },
                "sentence_bert_config.json": {"do_lower_case": True},
            }
        )
    )
    assert dict(card.prompts) == {"query": "query: ", "passage": ""}
    assert card.default_prompt == "query"
    assert card.do_lower_case
    assert card.matryoshka == (4, 8)


@pytest.mark.parametrize("name", [None, "query", "document"])
def test_prompts_that_sentence_transformers_takes_are_taken(make, name):
    st = {"prompts": {"passage": None}, "default_prompt_name": name}
    card = read_card(make({"config_sentence_transformers.json": st}))
    assert dict(card.prompts) == {"passage": ""}
    assert card.default_prompt == name


@pytest.mark.parametrize(
    ("config", "types"),
    [
        ({}, 2),
        ({"type_vocab_size": 0}, 0),
        ({"type_vocab_size": None}, 2),
        ({"model_type": "mpnet", "type_vocab_size": 2}, 0),
        ({"model_type": "gte"}, 1),
        ({"model_type": "qwen3"}, 0),
        ({"text_config": {**CONFIG, "type_vocab_size": 3}}, 3),
    ],
)
def test_token_types_are_the_familys_own_where_the_key_is_missing(make, config, types):
    assert read_card(make({"config.json": {**CONFIG, **config}})).token_types == types


def test_the_gateways_fingerprint_changes_with_everything_that_changes_token_ids(make):
    seen = {read_card(make()).gateway_fingerprint()}
    assert seen == {read_card(make()).gateway_fingerprint()}
    seen.add(read_card(make(), max_seq_len=10).gateway_fingerprint())
    seen.add(read_card(make({"tokenizer.json": {"model": {"a": 1}}})).gateway_fingerprint())
    prompts = {"config_sentence_transformers.json": {"prompts": {"query": "q: "}}}
    seen.add(read_card(make(prompts)).gateway_fingerprint())
    seen.add(
        read_card(
            make({"sentence_bert_config.json": {"do_lower_case": True}})
        ).gateway_fingerprint()
    )
    assert len(seen) == 5


BAD = {
    "no config": ({"config.json": None}, r"config\.json.*missing"),
    "config is no JSON": ({"config.json": b"{"}, r"config\.json.*JSON"),
    "config is a list": ({"config.json": []}, r"config\.json"),
    "config is not UTF-8": ({"config.json": b'{"a": "\x80"}'}, r"config\.json"),
    "no hidden size": ({"config.json": {**CONFIG, "hidden_size": None}}, "hidden_size"),
    "hidden size is text": ({"config.json": {**CONFIG, "hidden_size": "8"}}, "hidden_size"),
    "hidden size is zero": ({"config.json": {**CONFIG, "hidden_size": 0}}, "hidden_size"),
    "vocabulary is a bool": ({"config.json": {**CONFIG, "vocab_size": True}}, "vocab_size"),
    "positions missing": (
        {"config.json": {k: v for k, v in CONFIG.items() if k != "max_position_embeddings"}},
        "max_position_embeddings",
    ),
    "positions are text": (
        {"config.json": {**CONFIG, "max_position_embeddings": "many"}},
        "max_position_embeddings",
    ),
    "architectures is text": ({"config.json": {**CONFIG, "architectures": 5}}, "architectures"),
    "modules is a map": ({"modules.json": {}}, r"modules\.json"),
    "a module is text": ({"modules.json": ["x"]}, r"modules\.json"),
    "unknown module": (
        {"modules.json": [*MODULES, {"path": "x", "type": "evil.Custom"}]},
        r"modules\.json.*evil\.Custom",
    ),
    "a module outside its folder": (
        {"modules.json": [MODULES[0], {**MODULES[1], "path": "../../elsewhere"}]},
        r"modules\.json.*elsewhere",
    ),
    "pooling missing": ({"1_Pooling/config.json": None}, r"1_Pooling.config\.json.*missing"),
    "pooling of nothing": (
        {"1_Pooling/config.json": {"pooling_mode_mean_tokens": False}},
        r"1_Pooling.config\.json.*none",
    ),
    "unknown pooling": (
        {"1_Pooling/config.json": {"pooling_mode": "median"}},
        r"1_Pooling.config\.json.*median",
    ),
    "unknown old pooling": (
        {"1_Pooling/config.json": {"pooling_mode_median_tokens": True}},
        r"1_Pooling.config\.json.*median",
    ),
    "pooling is a number": (
        {"1_Pooling/config.json": {"pooling_mode": 5}},
        r"1_Pooling.config\.json",
    ),
    "pooling is a list": ({"1_Pooling/config.json": []}, r"1_Pooling.config\.json"),
    "dense without width": (
        {"modules.json": [*MODULES, DENSE], "2_Dense/config.json": {"in_features": 8}},
        r"2_Dense.config\.json.*out_features",
    ),
    "dense takes another width": (
        {
            "modules.json": [*MODULES, DENSE],
            "2_Dense/config.json": {"in_features": 12, "out_features": 8},
        },
        r"2_Dense.config\.json: in_features must be 8, .*found 12",
    ),
    "second dense takes another width": (
        {
            "modules.json": [*MODULES, DENSE, {**DENSE, "path": "3_Dense"}],
            "2_Dense/config.json": {"in_features": 8, "out_features": 4},
            "3_Dense/config.json": {"in_features": 6, "out_features": 4},
        },
        r"3_Dense.config\.json: in_features must be 4, .*found 6",
    ),
    "dense before the pooling": (
        {
            "modules.json": [MODULES[0], DENSE, MODULES[1]],
            "2_Dense/config.json": {"in_features": 8, "out_features": 8},
        },
        r"modules\.json: dense stands before the pooling",
    ),
    "dense on tokens after the pooling": (
        {
            "modules.json": [*MODULES, DENSE],
            "2_Dense/config.json": {
                "in_features": 8,
                "out_features": 8,
                "module_input_name": "token_embeddings",
            },
        },
        r"2_Dense.config\.json: module_input_name",
    ),
    "two poolings": (
        {"modules.json": [*MODULES, MODULES[1]]},
        r"modules\.json: there is more than one pooling",
    ),
    "no transformer first": (
        {"modules.json": [MODULES[1]]},
        r"modules\.json: a Transformer must be the first",
    ),
    "text_config is text": ({"config.json": {**CONFIG, "text_config": "x"}}, "text_config"),
    "text_config is a list": ({"config.json": {**CONFIG, "text_config": [1]}}, "text_config"),
    "more positions than memory": (
        {"config.json": {**CONFIG, "max_position_embeddings": 10**12}},
        "max_position_embeddings must be at most 16777216",
    ),
    "padding is text": ({"config.json": {**CONFIG, "pad_token_id": "x"}}, "pad_token_id"),
    "padding is a list": ({"config.json": {**CONFIG, "pad_token_id": [1]}}, "pad_token_id"),
    "padding past the positions": (
        {"config.json": {**CONFIG, "model_type": "roberta", "pad_token_id": 500}},
        "pad_token_id must be from 0 to 62",
    ),
    "padding below the positions": (
        {"config.json": {**CONFIG, "model_type": "roberta", "pad_token_id": -5}},
        "pad_token_id must be from 0 to 62",
    ),
    "length is text": (
        {"sentence_bert_config.json": {"max_seq_length": "long"}},
        r"sentence_bert_config\.json.*max_seq_length",
    ),
    "length is zero": (
        {"sentence_bert_config.json": {"max_seq_length": 0}},
        r"sentence_bert_config\.json.*max_seq_length",
    ),
    "prompts are a list": (
        {"config_sentence_transformers.json": {"prompts": ["x"]}},
        r"config_sentence_transformers\.json.*prompts",
    ),
    "default prompt is a number": (
        {"config_sentence_transformers.json": {"default_prompt_name": 3}},
        r"config_sentence_transformers\.json.*default_prompt_name",
    ),
    "a prompt is a number": (
        {"config_sentence_transformers.json": {"prompts": {"query": 5}}},
        r"config_sentence_transformers\.json: prompts must be .*'query'",
    ),
    "default prompt is none of the prompts": (
        {"config_sentence_transformers.json": {"prompts": {"a": "x"}, "default_prompt_name": "b"}},
        r"config_sentence_transformers\.json: default_prompt_name must be one of",
    ),
    "token types are text": (
        {"config.json": {**CONFIG, "type_vocab_size": "two"}},
        r"config\.json: type_vocab_size must be a whole number from 0 up",
    ),
    "token types are a list": (
        {"config.json": {**CONFIG, "type_vocab_size": [2]}},
        r"config\.json: type_vocab_size must be a whole number from 0 up",
    ),
    "a Pooling of other code": (
        {"modules.json": [MODULES[0], {**MODULES[1], "type": "my_code.attention.Pooling"}]},
        r"modules\.json: module type 'my_code\.attention\.Pooling' is not supported",
    ),
    "a path of two lines": (
        {"modules.json": [MODULES[0], {**MODULES[1], "path": "1_\nPooling"}]},
        r"modules\.json: path must be the name of a folder, found '1_\\nPooling'",
    ),
    "a transformer that is not there": (
        {"modules.json": [{**MODULES[0], "path": "0_Transformer"}, MODULES[1]]},
        r"0_Transformer/config\.json: missing",
    ),
    "more labels than any model has": (
        {
            "modules.json": None,
            "config.json": {
                **CONFIG,
                "architectures": ["BertForSequenceClassification"],
                "num_labels": 10**9,
            },
        },
        r"config\.json: num_labels must be at most 65536",
    ),
    "a label's number is huge": (
        {
            "modules.json": None,
            "config.json": {
                **CONFIG,
                "architectures": ["BertForSequenceClassification"],
                "id2label": {"1" * 5000: "a"},
            },
        },
        r"config\.json: id2label must be an object with numbers as keys",
    ),
    "matryoshka is a number": (
        {"config.json": {**CONFIG, "matryoshka_dimensions": 4}},
        "matryoshka_dimensions",
    ),
    "matryoshka of texts": (
        {"config.json": {**CONFIG, "matryoshka_dimensions": ["4"]}},
        "matryoshka_dimensions",
    ),
    "labels are not numbered": (
        {
            "modules.json": None,
            "config.json": {
                **CONFIG,
                "architectures": ["BertForSequenceClassification"],
                "id2label": {"a": "b"},
            },
        },
        "id2label",
    ),
}


@pytest.mark.parametrize(("files", "message"), BAD.values(), ids=BAD.keys())
def test_a_wrong_folder_is_one_line_naming_file_and_key(make, files, message):
    folder = make(files)
    with pytest.raises(StartupError, match=message) as refused:
        read_card(folder)
    assert "\n" not in str(refused.value)
    assert str(folder) in str(refused.value)
