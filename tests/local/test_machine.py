from __future__ import annotations

import pytest

from hedgerow_local.machine import Machine, cpu_feature, version_of, visible_gpus


def test_the_widest_instruction_set_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    info = tmp_path / "cpuinfo"
    info.write_text("processor : 0\nflags\t\t: fpu avx2 avx512f sse\n")
    assert cpu_feature(info) == "avx512f"
    info.write_text("flags\t: fpu sse\n")
    assert cpu_feature(info) == ""
    assert cpu_feature(tmp_path / "absent") == ""


@pytest.mark.parametrize(
    ("env", "count"),
    [({}, 2), ({"CUDA_VISIBLE_DEVICES": "1"}, 1), ({"CUDA_VISIBLE_DEVICES": ""}, 0)],
    ids=["all", "one chosen", "none allowed"],
)
def test_gpus_are_those_this_process_may_use(tmp_path, env, count):
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert visible_gpus(env, tmp_path) == count


def test_a_cpu_build_of_torch_uses_no_gpu():
    with_cpu_torch = Machine(cores=8, cpu_feature="", gpus=2, torch="2.13.0+cpu", llvmlite="")
    with_cuda_torch = Machine(cores=8, cpu_feature="", gpus=2, torch="2.13.0", llvmlite="")
    assert not with_cpu_torch.cuda
    assert with_cuda_torch.cuda


def test_a_package_that_is_absent_has_no_version():
    assert version_of("pytest")
    assert version_of("no-such-package-anywhere") == ""
