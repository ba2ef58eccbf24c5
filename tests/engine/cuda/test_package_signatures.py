"""Our calls of FlashInfer, FlashAttention-4 and torch against the signatures really installed.

Signatures are read from the packages' source, so this needs their wheels, not their compilers:
`make test-slow` installs them without dependencies.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
from pathlib import Path
from typing import Any

import pytest
import torch

from hedgerow_engine.attention import fa4, flashinfer, varlen
from hedgerow_engine.attention.base import AttentionSpec
from hedgerow_engine.attention.lengths import Lengths
from hedgerow_engine.layers.kernels.base import GATES
from hedgerow_engine.layers.ops import Norm

SPECS = {
    "minilm": AttentionSpec(12, 12, 32, 0.2),
    "qwen3": AttentionSpec(16, 8, 128, 0.1, causal=True),
    "mistral": AttentionSpec(16, 8, 128, 0.1, causal=True, window=64),
    "modernbert": AttentionSpec(12, 12, 64, 0.1, window=64),
}
specs = pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)


def source_of(package: str, *inside: str) -> Path:
    """A source file of an installed package, found without importing it."""
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        pytest.skip(f"{package} is not installed here (make test-slow installs it)")
    for folder in found.submodule_search_locations:
        file = Path(folder).joinpath(*inside)
        if file.is_file():
            return file
    raise AssertionError(f"{package} has no {'/'.join(inside)} any more")


def signature(file: Path, name: str, owner: str | None = None) -> inspect.Signature:
    """The signature of a function or method, from its source; every default is None."""
    body: list[ast.stmt] = ast.parse(file.read_text("utf-8")).body
    if owner is not None:
        body = next(n for n in body if isinstance(n, ast.ClassDef) and n.name == owner).body
    node = next(n for n in body if isinstance(n, ast.FunctionDef) and n.name == name)
    a = node.args
    kind = inspect.Parameter
    plain = [*a.posonlyargs, *a.args]
    required = len(plain) - len(a.defaults)
    made = [
        kind(p.arg, kind.POSITIONAL_OR_KEYWORD, default=kind.empty if i < required else None)
        for i, p in enumerate(plain)
    ]
    if a.vararg:
        made.append(kind(a.vararg.arg, kind.VAR_POSITIONAL))
    for p, default in zip(a.kwonlyargs, a.kw_defaults, strict=True):
        made.append(kind(p.arg, kind.KEYWORD_ONLY, default=kind.empty if default is None else None))
    return inspect.Signature(made)


def lengths() -> Lengths:
    bounds = torch.tensor([0, 3, 8, 16, 16], dtype=torch.int32)
    table = torch.zeros(flashinfer.TABLE_BYTES, dtype=torch.uint8)
    return Lengths(
        bounds,
        bounds[:-1],
        bounds[1:],
        16,
        16,
        bounds.clone(),
        (table, table.clone()),
        (table.clone(), table.clone()),
    )


class Wrapper:
    """FlashInfer's wrapper as its source declares it, noting what it was given."""

    file: Path

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        owner = "BatchPrefillWithRaggedKVCacheWrapper"
        self._plan = signature(self.file, "plan", owner)
        self._run = signature(self.file, "run", owner)
        self.made = signature(self.file, "__init__", owner).bind(self, *args, **kwargs).arguments
        self._int_workspace_buffer: Any = None
        self._pin_memory_int_workspace_buffer: Any = None
        self.plans: list[tuple[dict[str, Any], Any]] = []

    def plan(self, *args: Any, **kwargs: Any) -> None:
        bound = self._plan.bind(self, *args, **kwargs).arguments
        self.plans.append((bound, self._pin_memory_int_workspace_buffer))

    def run(self, *args: Any) -> torch.Tensor:
        return self._run.bind(self, *args).arguments["q"]


def planned(spec: AttentionSpec, at: Lengths) -> tuple[flashinfer.FlashInferAttention, Wrapper]:
    Wrapper.file = source_of("flashinfer", "prefill.py")
    made: list[Wrapper] = []

    def wrapper(*args: Any, **kwargs: Any) -> Wrapper:
        made.append(Wrapper(*args, **kwargs))
        return made[-1]

    attention = flashinfer.FlashInferAttention(
        spec,
        at,
        kernel="fa3",
        place=1,
        scratch=torch.zeros(4),
        dtype=torch.bfloat16,
        wrapper=wrapper,
    )
    return attention, made[0]


@pytest.mark.kernels
@specs
def test_flashinfer_takes_what_we_plan(spec: AttentionSpec) -> None:
    at = lengths()
    attention, wrapper = planned(spec, at)
    assert wrapper.made["use_cuda_graph"] is True and wrapper.made["backend"] == "fa3"
    assert wrapper.made["qo_indptr_buf"] is at.cu_seqlens
    assert wrapper._int_workspace_buffer is at.device_tables[1]
    (bound, table) = wrapper.plans[0]  # planned at the padded size before anything runs
    assert table is at.tables[1]
    assert bound["qo_indptr"].device.type == "cpu" and bound["qo_indptr"].dtype == torch.int32
    assert int(bound["qo_indptr"][-1]) == at.tokens
    assert bound["q_data_type"] is torch.bfloat16 and bound["disable_split_kv"] is True
    assert bound["causal"] is spec.causal and bound["sm_scale"] == spec.scale
    assert bound["window_left"] == (-1 if spec.window is None else spec.window)
    q = torch.zeros(16, spec.num_heads, spec.head_dim)
    assert attention.run(q, q, q) is q


@pytest.mark.kernels
def test_flashinfer_plans_from_the_slot_of_each_pass() -> None:
    """Two passes in flight must not share a table or its lengths."""
    at = lengths()
    attention, wrapper = planned(SPECS["qwen3"], at)
    other = torch.zeros(8, dtype=torch.uint8)
    at.host_cu_seqlens = torch.tensor([0, 1, 16, 16, 16], dtype=torch.int32)
    at.tables = (other, other.clone())
    attention.plan()
    bound, table = wrapper.plans[-1]
    assert table is at.tables[1] and bound["qo_indptr"] is at.host_cu_seqlens


@pytest.mark.kernels
def test_flashinfer_still_has_the_private_buffers_we_point_at_shared_memory() -> None:
    text = source_of("flashinfer", "prefill.py").read_text("utf-8")
    ragged = text[text.index("class BatchPrefillWithRaggedKVCacheWrapper") :]
    for name in ("_int_workspace_buffer", "_pin_memory_int_workspace_buffer"):
        assert f"self.{name} = " in ragged
        assert f"self.{name},\n" in ragged  # handed to the planner by that name


@pytest.mark.kernels
@pytest.mark.parametrize(
    ("file", "name", "args"),
    [
        ("norm/__init__.py", "rmsnorm", ("x", "w", 1e-6)),
        ("norm/__init__.py", "fused_add_rmsnorm", ("x", "r", "w", 1e-6)),
        *(("activation.py", name, ("x",)) for name in GATES.values()),
    ],
)
def test_flashinfer_has_the_fused_kernels_as_we_call_them(
    file: str, name: str, args: tuple[Any, ...]
) -> None:
    signature(source_of("flashinfer", *file.split("/")), name).bind(*args)


@pytest.mark.kernels
@specs
def test_flash_attention_4_takes_what_we_call(spec: AttentionSpec) -> None:
    file = source_of("flash_attn", "cute", "interface.py")
    taken = signature(file, "flash_attn_varlen_func")
    q = torch.zeros(16, spec.num_heads, spec.head_dim)
    bound = taken.bind(q, q, q, **fa4.keywords(spec, lengths())).arguments
    assert bound["max_seqlen_q"] == 16 and isinstance(bound["max_seqlen_q"], int)
    assert bound["num_splits"] == 1
    expected = {None: (None, None), 64: (64, 0) if spec.causal else (64, 64)}[spec.window]
    assert bound["window_size"] == expected
    assert bound["causal"] == (spec.causal and spec.window is None)


@specs
def test_torchs_ragged_attention_takes_what_we_call(spec: AttentionSpec) -> None:
    from torch.nn.attention.varlen import varlen_attn

    q, cu = torch.zeros(16, spec.num_heads, spec.head_dim), torch.zeros(2, dtype=torch.int32)
    named = varlen.keywords(varlen_attn, spec)
    inspect.signature(varlen_attn).bind(q, q, q, cu, cu, 16, 16, **named)
    assert named["scale"] == spec.scale
    assert named.get("enable_gqa", False) == (spec.num_heads != spec.num_kv_heads)
    splits = "num_splits" in inspect.signature(varlen_attn).parameters
    assert named.get("num_splits") == (1 if splits else None)


def test_an_older_torch_without_grouped_heads_is_not_given_that_word() -> None:
    """torch 2.11: no `enable_gqa`; its kernel takes grouped heads without being told."""

    def varlen_attn(  # type: ignore[no-untyped-def]
        query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, scale=None, window_size=(-1, -1)
    ): ...

    named = varlen.keywords(varlen_attn, SPECS["qwen3"])
    assert named == {"scale": 0.1, "window_size": (-1, 0)}


def test_keys_are_never_split_where_torch_lets_us_say_so() -> None:
    """A split grid depends on the longest sequence: a row would on its neighbours."""

    def varlen_attn(query, *, scale=None, window_size=(-1, -1), num_splits=None): ...  # type: ignore[no-untyped-def]

    assert varlen.keywords(varlen_attn, SPECS["minilm"])["num_splits"] == 1


@pytest.mark.parametrize(
    ("spec", "window"),
    [("minilm", (-1, -1)), ("qwen3", (-1, 0)), ("mistral", (64, 0)), ("modernbert", (64, 64))],
)
def test_windows_are_said_in_torchs_words(spec: str, window: tuple[int, int]) -> None:
    assert varlen.window_of(SPECS[spec]) == window


class Library:
    """FlashInfer's in-place kernels, as they are documented."""

    def fused_add_rmsnorm(self, x: Any, residual: Any, weight: Any, eps: float) -> None:
        residual += x
        x.copy_(torch.nn.functional.rms_norm(residual, weight.shape, weight, eps))

    def rmsnorm(self, x: Any, weight: Any, eps: float) -> Any:
        return torch.nn.functional.rms_norm(x, weight.shape, weight, eps)

    def silu_and_mul(self, x: Any) -> Any:
        gate, up = x.chunk(2, -1)
        return torch.nn.functional.silu(gate) * up


@pytest.mark.kernels
def test_flashinfers_kernels_are_used_only_where_they_mean_the_same() -> None:
    if importlib.util.find_spec("triton") is None:
        pytest.skip("triton is not installed here (make test-slow installs it)")
    from hedgerow_engine.layers.kernels.flashinfer import FlashInferKernels
    from hedgerow_engine.layers.kernels.fused import TritonKernels
    from hedgerow_engine.layers.kernels.twins import TorchKernels

    ours = FlashInferKernels.__new__(FlashInferKernels)
    ours._library, ours._weights = Library(), {}
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, 64, generator=generator).bfloat16()
    exact = Norm(torch.ones(64), None, 1e-6, "rms")
    rounded = Norm(torch.full((64,), 1.0 + 2**-20), None, 1e-6, "rms")
    layer = Norm(torch.ones(64), torch.ones(64), 1e-6)
    assert ours._exact(exact, x.dtype) is not None
    assert ours._exact(rounded, x.dtype) is None and ours._exact(layer, x.dtype) is None
    assert ours._exact(exact, torch.float32) is None
    want = TorchKernels().add_norm(x.clone(), None, x.clone(), exact)
    got = ours.add_norm(x.clone(), None, x.clone(), exact)
    for a, b in zip(got, want, strict=True):
        assert torch.allclose(a.float(), b.float(), atol=0.02)
    assert isinstance(ours, TritonKernels) and set(GATES) == {"silu", "gelu", "gelu_tanh"}


@pytest.mark.kernels
def test_a_norm_made_where_another_was_freed_keeps_its_own_weight() -> None:
    """Python gives the id of a freed tensor to the next one."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("triton is not installed here (make test-slow installs it)")
    from hedgerow_engine.layers.kernels.flashinfer import FlashInferKernels

    ours = FlashInferKernels.__new__(FlashInferKernels)
    ours._library, ours._weights = Library(), {}
    x = torch.ones(2, 16, dtype=torch.bfloat16)
    for value in range(100):
        norm = Norm(torch.full((16,), float(value)), None, 1e-6, "rms")
        assert float(ours.norm(x, norm)[0, 0]) == pytest.approx(value, rel=0.02)
        del norm
