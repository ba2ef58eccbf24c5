"""Attention of one graph key: each kind of layer gets its kernel once, planned at every pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from hedgerow_engine.attention.base import AttentionSpec, ScoreBias
from hedgerow_engine.attention.choose import CAPTURABLE, BackendName, Choice, Have, Need, choose
from hedgerow_engine.attention.fa4 import Fa4Attention
from hedgerow_engine.attention.flashinfer import SCRATCH_BYTES, TABLE_BYTES, FlashInferAttention
from hedgerow_engine.attention.lengths import Lengths
from hedgerow_engine.attention.sdpa import SdpaAttention
from hedgerow_engine.attention.varlen import VarlenAttention
from hedgerow_engine.device.cuda.runtime import OUT_OF_MEMORY, Runtime
from hedgerow_engine.graphs import CaptureError
from hedgerow_engine.staging import Layout

MAX_PLANNED = 2
_TRIAL_COSINE = 0.99
Log = Callable[[str], None]


class Kernel(Protocol):
    """A backend bound to one kind of layer and one key."""

    def plan(self) -> None: ...

    def run(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor: ...


class Kernels:
    """Chooses a backend for each kind of layer of a model, tries it, and says so once.

    A backend that fails its trial (it does not compile here, or answers wrongly) is left out,
    with one line about what is used instead.
    """

    def __init__(
        self,
        runtime: Runtime,
        *,
        dtype: torch.dtype,
        installed: frozenset[BackendName],
        wanted: str,
        log: Log,
    ) -> None:
        self._runtime, self._wanted, self._log = runtime, wanted, log
        self.dtype = dtype
        self._have = Have(arch=runtime.arch, installed=installed)
        self._scratch: Tensor | None = None
        self._said: set[tuple[AttentionSpec, BackendName]] = set()
        self.chosen: dict[AttentionSpec, set[BackendName]] = {}

    @property
    def capturable(self) -> bool:
        """False when a layer needs the oracle, which reads lengths back while it runs (from host
        memory, in a rehearsal, that is no wait)."""
        on_host = self._runtime.device.type == "cpu"
        return on_host or all(
            name in CAPTURABLE for names in self.chosen.values() for name in names
        )

    @property
    def plans(self) -> bool:
        """True when a backend that needs plan tables may be chosen."""
        return any(name.startswith("flashinfer") for name in self._have.installed)

    @property
    def names(self) -> str:
        """For logs: the backends in use."""
        return "+".join(sorted({n for names in self.chosen.values() for n in names})) or "none yet"

    def bind(self, spec: AttentionSpec, lengths: Lengths, *, biased: bool, place: int) -> Kernel:
        """The kernel for one kind of layer at one key. Its first choice may fail; SDPA cannot."""
        while True:
            have = self._have if place < MAX_PLANNED else _unplanned(self._have)
            choice = choose(self._need(spec, lengths, biased), have, self._wanted)
            try:
                kernel = self._make(choice.name, spec, lengths, place)
                if choice.name != "sdpa" and (spec, choice.name) not in self._said:
                    self._try(spec, choice.name)
            except OUT_OF_MEMORY:
                # Says nothing about the backend: graphs go, and the pass is tried again.
                raise
            except Exception as error:
                if choice.name == "sdpa":
                    raise
                self._leave_out(choice.name, error)
                continue
            self._say(spec, choice)
            return kernel

    def _need(self, spec: AttentionSpec, lengths: Lengths, biased: bool) -> Need:
        return Need(
            head_dim=spec.head_dim,
            num_heads=spec.num_heads,
            num_kv_heads=spec.num_kv_heads,
            causal=spec.causal,
            window=spec.window,
            longest=lengths.longest,
            dtype=str(self.dtype).removeprefix("torch."),
            biased=biased,
        )

    def _make(self, name: BackendName, spec: AttentionSpec, lengths: Lengths, place: int) -> Kernel:
        if name == "varlen":
            return VarlenAttention(spec, lengths)
        if name == "fa4":
            return Fa4Attention(spec, lengths)
        if name == "sdpa":
            return SdpaAttention(spec, lengths)
        if self._scratch is None:
            self._scratch = self._runtime.zeros((SCRATCH_BYTES,), torch.uint8)
        return FlashInferAttention(
            spec,
            lengths,
            kernel="fa3" if name == "flashinfer_fa3" else "fa2",
            place=place,
            scratch=self._scratch,
            dtype=self.dtype,
        )

    def _try(self, spec: AttentionSpec, name: BackendName) -> None:
        """Compare a backend with the oracle on three short sequences and an empty slot."""
        lengths = trial_lengths(self._runtime)
        q, k, v = trial_inputs(self._runtime, spec, self.dtype)
        kernel = self._make(name, spec, lengths, 0)
        got = kernel.run(q, k, v).float().flatten()
        right = SdpaAttention(spec, lengths).run(q, k, v).float().flatten()
        cosine = float(torch.nn.functional.cosine_similarity(got, right, dim=0))
        if not cosine > _TRIAL_COSINE:
            raise ArithmeticError(f"its answers differ from the oracle's (cosine {cosine:.4f})")

    def _leave_out(self, name: BackendName, error: Exception) -> None:
        self._have = replace(self._have, failed=self._have.failed | {name})
        text = str(error).strip().split("\n", 1)[0][:160]
        self._log(f"attention {name} does not work here ({type(error).__name__}: {text}); without")

    def _say(self, spec: AttentionSpec, choice: Choice) -> None:
        self.chosen.setdefault(spec, set()).add(choice.name)
        if (spec, choice.name) in self._said:
            return
        self._said.add((spec, choice.name))
        window = "" if spec.window is None else f", window {spec.window}"
        mask = "causal" if spec.causal else "both ways"
        self._log(
            f"attention {choice.name} for {spec.num_heads}/{spec.num_kv_heads} heads of "
            f"{spec.head_dim}, {mask}{window}: {choice.reason}"
        )


class KeyAttention:
    """Satisfies `AttentionBackend` for one key. Kinds of layers are found in the eager pass.

    capturing: a kernel that is bound now would be compiled, tried and planned inside a graph
    """

    def __init__(self, kernels: Kernels, lengths: Lengths) -> None:
        self._kernels, self.lengths = kernels, lengths
        self._bound: dict[AttentionSpec, Kernel] = {}
        self.capturing = False

    def plan(self, layout: Layout) -> None:
        """Plan every bound kernel for the pass whose slot `lengths` points at."""
        for kernel in self._bound.values():
            kernel.plan()

    def run(
        self, q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec, bias: ScoreBias | None
    ) -> Tensor:
        kernel = self._bound.get(spec)
        if kernel is None:
            if self.capturing:
                raise CaptureError("a kind of attention that no eager pass has run")
            kernel = self._kernels.bind(
                spec, self.lengths, biased=bias is not None, place=len(self._bound)
            )
            self._bound[spec] = kernel
        if bias is not None:
            assert isinstance(kernel, SdpaAttention), "only the oracle adds a bias"
            answer = kernel.run(q, k, v, bias)
        else:
            answer = kernel.run(q, k, v)
        return answer.reshape(q.shape[0], spec.num_heads * spec.head_dim)


def _unplanned(have: Have) -> Have:
    """Without the backends that need plan tables: a slot holds only MAX_PLANNED of them."""
    planned: frozenset[BackendName] = frozenset({"flashinfer_fa3", "flashinfer_fa2"})
    return replace(have, installed=have.installed - planned)


_TRIAL_SEQLENS = (5, 1, 10)


def trial_lengths(runtime: Runtime) -> Lengths:
    """Lengths of a made-up batch: three sequences and an empty slot, 16 tokens."""
    bounds = [0]
    for length in _TRIAL_SEQLENS:
        bounds.append(bounds[-1] + length)
    bounds.append(bounds[-1])
    host = runtime.pinned((len(bounds),), torch.int32)
    host.copy_(torch.tensor(bounds, dtype=torch.int32))
    device = runtime.zeros((len(bounds),), torch.int32)
    device.copy_(host)
    return Lengths(
        device,
        device[:-1],
        device[1:],
        bounds[-1],
        max(_TRIAL_SEQLENS),
        host,
        tuple(runtime.pinned((TABLE_BYTES,), torch.uint8) for _ in range(MAX_PLANNED)),
        tuple(runtime.zeros((TABLE_BYTES,), torch.uint8) for _ in range(MAX_PLANNED)),
    )


def trial_inputs(
    runtime: Runtime, spec: AttentionSpec, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v of 16 tokens, the same at every start."""
    tokens = sum(_TRIAL_SEQLENS)
    generator = torch.Generator().manual_seed(0)

    def one(heads: int) -> Tensor:
        values = torch.randn(tokens, heads, spec.head_dim, generator=generator)
        return values.to(runtime.device, dtype)

    return one(spec.num_heads), one(spec.num_kv_heads), one(spec.num_kv_heads)
