"""flag > environment > file > default."""

from typing import Literal

import msgspec
import pytest

from hedgerow_shared import config
from hedgerow_shared.errors import StartupError


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    port: int = 8080
    model: tuple[str, ...] = ()
    dtype: Literal["auto", "float32"] = "auto"
    log_json: bool = False
    nats_url: str = "nats://127.0.0.1:4222"
    budget: float = 1.5

    __help__ = {"port": "where to listen (100% local)"}


class Needy(msgspec.Struct, frozen=True, kw_only=True):
    name: str


def load(*argv: str, env: dict[str, str] | None = None, kind=Settings):
    return config.load(kind, argv, env or {}, prog="hedgerow-test")


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "hedgerow.toml"
    path.write_text('port = 1\nmodel = ["a=x"]\nlog_json = true\nbudget = 2\n')
    return str(path)


def test_defaults_are_what_the_class_says():
    assert load() == Settings()


def test_a_flag_beats_the_environment_which_beats_the_file_which_beats_the_default(file):
    env = {"HEDGEROW_PORT": "2"}
    assert load("--config", file).port == 1
    assert load("--config", file, env=env).port == 2
    assert load("--config", file, "--port", "3", env=env).port == 3


def test_each_source_fills_its_own_fields(file):
    settings = load("--config", file, "--dtype", "float32", env={"HEDGEROW_NATS_URL": "nats://h"})
    assert settings == Settings(
        port=1, model=("a=x",), log_json=True, budget=2.0, dtype="float32", nats_url="nats://h"
    )


def test_the_file_may_be_named_by_the_environment(file):
    assert load(env={"HEDGEROW_CONFIG": file}).port == 1


def test_a_flag_may_be_repeated_and_a_variable_has_commas():
    assert load("--model", "a=x", "--model", "b=y").model == ("a=x", "b=y")
    assert load(env={"HEDGEROW_MODEL": "a=x,b=y"}).model == ("a=x", "b=y")
    assert load("--model", "c=z", env={"HEDGEROW_MODEL": "a=x,b=y"}).model == ("c=z",)


@pytest.mark.parametrize(
    ("argv", "env", "expected"),
    [
        (["--log-json"], {}, True),
        (["--no-log-json"], {"HEDGEROW_LOG_JSON": "true"}, False),
        ([], {"HEDGEROW_LOG_JSON": "1"}, True),
        ([], {"HEDGEROW_LOG_JSON": "false"}, False),
    ],
)
def test_switches_have_a_yes_and_a_no(argv, env, expected):
    assert load(*argv, env=env).log_json is expected


@pytest.mark.parametrize(
    ("argv", "env", "message"),
    [
        (["--port", "many"], {}, "--port"),
        ([], {"HEDGEROW_PORT": "x"}, "--port"),
        (["--dtype", "float16"], {}, "--dtype"),
        ([], {"HEDGEROW_LOG_JSON": "maybe"}, "--log-json"),
        (["--config", "/no/such.toml"], {}, "/no/such.toml"),
    ],
)
def test_a_wrong_value_is_one_line_that_names_the_flag(argv, env, message):
    with pytest.raises(StartupError) as refused:
        load(*argv, env=env)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_missing_value_names_its_flag():
    with pytest.raises(StartupError, match="--name: is required"):
        load(kind=Needy)


def test_an_unknown_key_or_broken_file_is_named(tmp_path):
    path = tmp_path / "f.toml"
    path.write_text("prot = 1\n")
    with pytest.raises(StartupError, match=r"f\.toml.*'prot'"):
        load("--config", str(path))
    path.write_text("port = = 1\n")
    with pytest.raises(StartupError, match=r"f\.toml"):
        load("--config", str(path))


def test_settings_do_not_change_afterwards():
    with pytest.raises(AttributeError):
        load().port = 1  # type: ignore[misc]


def test_help_shows_flags_defaults_and_texts(capsys):
    with pytest.raises(SystemExit) as ended:
        load("--help")
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert "--nats-url" in text and "100% local" in text and "8080" in text


def test_an_abbreviated_or_unknown_flag_is_refused(capsys):
    for flag in ("--por", "--nope"):
        with pytest.raises(SystemExit) as ended:
            load(flag, "1")
        assert ended.value.code == 2
    assert "--nope" in capsys.readouterr().err
