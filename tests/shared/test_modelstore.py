"""Where a model is found: a path, a package, the hub; and what is said when it is nowhere."""

import json
import socket
import sys

import pytest

from hedgerow_shared.errors import StartupError
from hedgerow_shared.modelstore import ModelSource, locate, parse_max_seq_len, parse_model_flag


@pytest.fixture
def folder(tmp_path):
    model = tmp_path / "some-model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    return model


@pytest.fixture
def no_network(monkeypatch):
    def refuse(*_args, **_kwargs):
        raise OSError("network is unreachable")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.fixture
def hub_cache(tmp_path, monkeypatch):
    """An empty Hugging Face cache; returns a function that fills it with a model."""
    from huggingface_hub import constants

    cache = tmp_path / "hub"
    cache.mkdir()
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))

    def add(name: str) -> None:
        root = cache / f"models--{name.replace('/', '--')}"
        snapshot = root / "snapshots" / "abc123"
        snapshot.mkdir(parents=True)
        (root / "refs").mkdir()
        (root / "refs" / "main").write_text("abc123")
        (snapshot / "config.json").write_text(json.dumps({"model_type": "bert"}))

    return add


@pytest.mark.parametrize(
    ("text", "alias", "where"),
    [
        ("minilm=./m", "minilm", "./m"),
        ("minilm=org/name", "minilm", "org/name"),
        ("org/name", "name", "org/name"),
        ("/models/minilm", "minilm", "/models/minilm"),
        ("a=b=c", "a", "b=c"),
    ],
)
def test_a_model_flag_is_alias_and_place(text, alias, where):
    assert parse_model_flag(text) == ModelSource(alias, where)


@pytest.mark.parametrize("text", ["", "=", "=x", "x="])
def test_a_model_flag_without_one_half_is_refused(text):
    with pytest.raises(StartupError, match="ALIAS=PATH_OR_HUB_ID"):
        parse_model_flag(text)


def test_a_path_is_the_folder_itself(folder, monkeypatch):
    assert locate(ModelSource("m", str(folder))) == folder.resolve()
    monkeypatch.chdir(folder.parent)
    assert locate(ModelSource("m", "some-model")) == folder.resolve()


def test_a_home_path_is_expanded(folder, monkeypatch):
    monkeypatch.setenv("HOME", str(folder.parent))
    assert locate(ModelSource("m", "~/some-model")) == folder.resolve()


def test_a_package_is_found_without_being_imported(tmp_path, monkeypatch):
    for name, sub in (("pkg_flat", ""), ("pkg_nested", "model")):
        where = tmp_path / name / sub
        where.mkdir(parents=True)
        (tmp_path / name / "__init__.py").write_text("raise RuntimeError('imported')")
        (where / "config.json").write_text("{}")
        monkeypatch.syspath_prepend(tmp_path)
        assert locate(ModelSource("m", name.replace("_", "-"))) == where
        assert name not in sys.modules


def test_a_hub_id_in_the_cache_needs_no_network(hub_cache, no_network):
    hub_cache("org/cached-model")
    found = locate(ModelSource("m", "org/cached-model"))
    assert (found / "config.json").is_file()


def test_a_folder_whose_config_lies_with_its_transformer_is_a_model(folder):
    (folder / "config.json").rename(folder / "modules.json")
    assert locate(ModelSource("m", str(folder))) == folder.resolve()


def one_line(source: ModelSource) -> str:
    with pytest.raises(StartupError) as refused:
        locate(source)
    assert "\n" not in str(refused.value)
    assert f"--model {source.alias}={source.where}" in str(refused.value)
    return str(refused.value)


def test_a_hub_id_without_network_is_one_line_with_the_remedy(hub_cache, no_network):
    assert "local folder" in one_line(ModelSource("m", "org/absent-model"))


def test_a_path_that_is_not_there_is_not_asked_of_the_hub(no_network):
    for where in ("/no/such/folder", "./nothing", "~/nothing-here", "a/b/c"):
        assert "no such folder" in one_line(ModelSource("m", where))


def test_a_folder_without_a_model_says_what_belongs_there(tmp_path):
    assert "config.json" in one_line(ModelSource("m", str(tmp_path)))
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"")
    assert "a file" in one_line(ModelSource("m", str(file)))


def test_without_the_hub_library_the_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert "huggingface-hub" in one_line(ModelSource("m", "org/name"))


def test_minilm_is_a_whole_model(minilm_folder):
    for name in ("config.json", "tokenizer.json", "model.safetensors", "modules.json"):
        assert (minilm_folder / name).is_file()


def test_lengths_for_all_and_for_one():
    assert parse_max_seq_len(["512", "b=128"], ["a", "b"]) == {"a": 512, "b": 128}
    assert parse_max_seq_len([], ["a"]) == {}


@pytest.mark.parametrize("flag", ["0", "-1", "x", "c=5", "a=", "a=1.5"])
def test_a_length_that_is_none_names_its_flag(flag):
    with pytest.raises(StartupError, match="--max-seq-len"):
        parse_max_seq_len([flag], ["a", "b"])


DENSE = "sentence_transformers.models.Dense"
MODULES = [
    {"path": "", "type": "sentence_transformers.models.Transformer"},
    {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    {"path": "2_Dense", "type": DENSE},
]


@pytest.fixture
def hub(hub_cache, monkeypatch):
    """`hub(here=[...], there=[...])`: files in the cache, and what the hub lists; counts asks."""
    asked = []

    def make(here: list[str], there: list[str] | None):
        hub_cache("org/some-model")
        found = locate(ModelSource("m", "org/some-model"))
        asked.clear()
        for name in here:
            (found / name).parent.mkdir(exist_ok=True)
            (found / name).write_text(json.dumps(MODULES) if name == "modules.json" else "{}")

        def listed(_repo: str) -> list[str]:
            asked.append(_repo)
            if there is None:
                raise OSError("network is unreachable")
            return there

        monkeypatch.setattr("huggingface_hub.list_repo_files", listed)
        return asked

    monkeypatch.setattr("huggingface_hub.list_repo_files", lambda _repo: [])
    return make


@pytest.mark.parametrize(
    ("here", "there", "named"),
    [
        ([], ["pytorch_model.bin", "training_args.bin"], "pytorch_model.bin"),
        ([], ["pytorch_model-00001-of-00002.bin"], "pytorch_model-00001-of-00002.bin"),
        (
            ["modules.json", "model.safetensors"],
            ["model.safetensors", "2_Dense/pytorch_model.bin"],
            "2_Dense/pytorch_model.bin",
        ),
    ],
)
def test_a_pickle_that_stayed_on_the_hub_is_named(hub, no_network, here, there, named):
    hub(here, there)
    line = one_line(ModelSource("m", "org/some-model"))
    assert f"the hub has {named} and no safetensors" in line and "convert" in line


@pytest.mark.parametrize(
    ("here", "there", "asks"),
    [
        (["model.safetensors"], ["pytorch_model.bin"], 0),
        (["modules.json", "model.safetensors", "2_Dense/model.safetensors"], [], 0),
        ([], None, 1),
        ([], ["onnx/pytorch_model.bin", "openvino_model.bin"], 1),
    ],
    ids=["whole", "whole with a Dense", "no network", "pickles elsewhere"],
)
def test_the_hub_is_asked_for_a_list_only_where_weights_are_missing(
    hub, no_network, here, there, asks
):
    asked = hub(here, there)
    assert locate(ModelSource("m", "org/some-model")).is_dir()
    assert len(asked) == asks
