"""The installed FlashInfer itself, imported without a card: its own `plan` runs over tensors of
the host up to the compiled module, which is the first thing that needs one."""

from __future__ import annotations

import importlib
import importlib.util
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from test_package_signatures import lengths, specs

from hedgerow_engine.attention import flashinfer as ours
from hedgerow_engine.attention.base import AttentionSpec

pytestmark = pytest.mark.kernels


@pytest.fixture
def prefill(monkeypatch: pytest.MonkeyPatch) -> Any:
    """flashinfer.prefill; memory asked to be pinned is plain here."""
    for package in ("flashinfer", "tvm_ffi", "pynvml"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed here (make test-slow installs it)")
    if torch.cuda.is_available():
        pytest.skip("on a machine with a card tests/gpu runs the module itself")
    ours.use_prebuilt_norms()
    module = importlib.import_module("flashinfer.prefill")
    plain = torch.empty
    monkeypatch.setattr(
        torch, "empty", lambda *args, pin_memory=False, **named: plain(*args, **named)
    )
    return module


def attention(spec: AttentionSpec, kernel: ours.Kernel) -> tuple[ours.FlashInferAttention, Any]:
    at = lengths()
    scratch = torch.zeros(ours.SCRATCH_BYTES, dtype=torch.uint8)
    made = ours.FlashInferAttention(
        spec, at, kernel=kernel, place=1, scratch=scratch, dtype=torch.bfloat16
    )
    return made, at


@specs
@pytest.mark.parametrize("kernel", ["fa2", "fa3"])
def test_the_real_plan_gets_as_far_as_the_compiled_module(
    spec: AttentionSpec, kernel: ours.Kernel, prefill: Any
) -> None:
    with pytest.raises(RuntimeError, match="requires GPUs"):
        attention(spec, kernel)


@specs
@pytest.mark.parametrize("kernel", ["fa2", "fa3"])
def test_the_real_plan_gives_the_module_our_tables_and_the_lengths_of_the_host(
    spec: AttentionSpec, kernel: ours.Kernel, prefill: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[Any, ...]] = []
    plans: list[tuple[Any, ...]] = []

    def compiled(*key: Any) -> SimpleNamespace:
        asked.append(key)
        return SimpleNamespace(plan=lambda *args: plans.append(args) or [0] * 16)

    monkeypatch.setattr(prefill, "get_batch_prefill_module", compiled)
    made, at = attention(spec, kernel)
    assert asked[0][0] == kernel and torch.bfloat16 in asked[0]
    addresses = [a.data_ptr() for a in plans[0] if isinstance(a, torch.Tensor)]
    assert at.device_tables[1].data_ptr() in addresses
    assert at.tables[1].data_ptr() in addresses
    assert at.host_cu_seqlens.data_ptr() in addresses, "read on the host, not fetched from a card"
    other = torch.zeros(ours.TABLE_BYTES, dtype=torch.uint8)
    at.tables = (other, other.clone())
    made.plan()
    addresses = [a.data_ptr() for a in plans[-1] if isinstance(a, torch.Tensor)]
    assert at.tables[1].data_ptr() in addresses, "the slot of this pass"
    assert len(plans) == 2
