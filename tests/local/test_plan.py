from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from hedgerow_local import plan
from hedgerow_local.machine import Machine
from hedgerow_local.options import ServedModel, UpOptions

MODELS = [ServedModel("minilm", SimpleNamespace(folder=Path("/models/minilm")))]  # type: ignore[arg-type]


def machine(cores: int = 2, gpus: int = 0, torch: str = "2.13.0+cpu") -> Machine:
    return Machine(cores=cores, cpu_feature="avx2", gpus=gpus, torch=torch, llvmlite="0.50.0")


def workers(options: UpOptions, where: Machine) -> list[plan.Spec]:
    return plan.worker_specs(options, where, MODELS, nats_url="nats://h:1", env={})


def flag(spec: plan.Spec, name: str) -> str:
    return spec.argv[spec.argv.index(name) + 1]


@pytest.mark.parametrize(
    ("options", "where", "count"),
    [
        pytest.param(UpOptions(), machine(1), 1, id="one core"),
        pytest.param(UpOptions(), machine(2), 2, id="two cores"),
        pytest.param(UpOptions(), machine(8), 7, id="eight cores leave one"),
        pytest.param(UpOptions(threads=2), machine(8), 3, id="two threads each on eight cores"),
        pytest.param(UpOptions(threads=2), machine(2), 1, id="two threads on two cores"),
        pytest.param(UpOptions(threads=1), machine(2), 2, id="one thread on two cores"),
        pytest.param(UpOptions(workers=3), machine(8), 3, id="as asked"),
        pytest.param(UpOptions(), machine(8, 2, "2.13.0"), 2, id="one per GPU"),
        pytest.param(UpOptions(device="cpu"), machine(8, 2, "2.13.0"), 7, id="GPU not wanted"),
        pytest.param(UpOptions(device="cuda:1"), machine(8, 2, "2.13.0"), 1, id="one GPU named"),
    ],
)
def test_the_number_of_workers_fits_the_machine(options, where, count):
    assert plan.choose_workers(options, where).value == count
    assert len(workers(options, where)) == count


def test_each_gpu_gets_a_worker_of_its_own():
    specs = workers(UpOptions(), machine(8, 2, "2.13.0"))
    assert [flag(spec, "--device") for spec in specs] == ["cuda:0", "cuda:1"]


def test_a_worker_is_told_everything_it_was_asked_for():
    options = UpOptions(
        dtype="bfloat16", threads=2, cpu_executor="packed", budget_tokens=300, max_seq_len=("99",)
    )
    spec = workers(options, machine(1))[0]
    assert spec.argv[1:3] == ("-m", "hedgerow_scheduler")
    expected = {
        "--nats-url": "nats://h:1",
        "--model": "minilm=/models/minilm",
        "--max-seq-len": "99",
        "--device": "auto",
        "--dtype": "bfloat16",
        "--threads": "2",
        "--cpu-executor": "packed",
        "--budget-tokens": "300",
        "--worker-id": "{id}",
    }
    assert {name: flag(spec, name) for name in expected} == expected


def test_several_gateways_share_the_port():
    one = plan.gateway_specs(UpOptions(), MODELS, nats_url="nats://h:1", env={})
    assert [spec.name for spec in one] == ["gateway"]
    assert "--reuse-port" not in one[0].argv
    two = plan.gateway_specs(UpOptions(gateways=2), MODELS, nats_url="nats://h:1", env={})
    assert [spec.name for spec in two] == ["gateway 1", "gateway 2"]
    assert all("--reuse-port" in spec.argv for spec in two)


def test_token_ids_are_accepted_only_when_asked_for():
    plain = plan.gateway_specs(UpOptions(), MODELS, nats_url="u", env={})[0]
    native = plan.gateway_specs(UpOptions(token_ids="native"), MODELS, nats_url="u", env={})[0]
    assert flag(plain, "--token-ids") == "off"
    assert flag(native, "--token-ids") == "native"


@pytest.mark.parametrize(
    ("options", "where", "words"),
    [
        pytest.param(UpOptions(), machine(), "CPU with avx2 (no NVIDIA device)", id="no GPU"),
        pytest.param(UpOptions(), machine(8, 1, "2.13.0"), "CUDA (1 NVIDIA", id="GPU"),
        pytest.param(UpOptions(), machine(8, 1), "2.13.0+cpu is a CPU build", id="CPU torch"),
        pytest.param(UpOptions(), machine(8, 1, ""), "torch is absent", id="no torch"),
        pytest.param(UpOptions(device="cpu"), machine(8, 1, "2.13.0"), "as asked", id="asked"),
    ],
)
def test_the_device_comes_with_its_reason(options, where, words):
    assert words in plan.device_note(options, where)


def together(options: UpOptions, where: Machine) -> list[plan.Spec]:
    logins = {
        "worker": {"HEDGEROW_NATS_PASSWORD": "w"},
        "gateway": {"HEDGEROW_NATS_PASSWORD": "g"},
    }
    return plan.together_specs(
        options, where, MODELS, nats_url="nats://h:1", env={"A": "1"}, logins=logins
    )


def test_together_each_process_gets_the_flags_of_both():
    options = UpOptions(together=True, threads=2, token_ids="native", port=81, max_seq_len=("9",))
    (spec,) = together(options, machine(1))
    assert spec.argv[1:3] == ("-m", "hedgerow_together")
    cut = spec.argv.index("--")
    for half in (spec.argv[:cut], spec.argv[cut:]):
        for name, value in (("--model", "minilm=/models/minilm"), ("--nats-url", "nats://h:1")):
            assert half[half.index(name) + 1] == value
    assert {"--port", "81", "--token-ids", "native"} <= set(spec.argv[:cut])
    assert {"--threads", "2", "--worker-id", "{id}"} <= set(spec.argv[cut:])
    assert spec.services == 2
    assert spec.env == {
        "A": "1",
        "HEDGEROW_WORKER_NATS_PASSWORD": "w",
        "HEDGEROW_GATEWAY_NATS_PASSWORD": "g",
    }


def test_together_they_share_the_port_only_if_there_are_several():
    assert "--reuse-port" not in together(UpOptions(together=True), machine(1))[0].argv
    assert all("--reuse-port" in s.argv for s in together(UpOptions(together=True), machine(2)))


def test_together_each_gpu_gets_a_process_of_its_own():
    specs = together(UpOptions(together=True), machine(8, 2, "2.13.0"))
    assert [flag(spec, "--device") for spec in specs] == ["cuda:0", "cuda:1"]
