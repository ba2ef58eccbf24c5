"""Which attention kernel runs on a GPU, and why: a pure function over a table of facts.

Nothing here imports torch or asks a device. `Need` says what a layer wants, `Have` what the card
and the installation offer; the answer carries the sentence that goes to the log.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

BackendName = Literal["flashinfer_fa3", "flashinfer_fa2", "fa4", "varlen", "sdpa"]
BACKENDS: tuple[BackendName, ...] = ("flashinfer_fa3", "flashinfer_fa2", "fa4", "varlen", "sdpa")
CAPTURABLE: frozenset[BackendName] = frozenset(BACKENDS) - {"sdpa"}
INSTALL: dict[BackendName, str] = {
    "flashinfer_fa3": "pip install 'hedgerow[cuda]'",
    "flashinfer_fa2": "pip install 'hedgerow[cuda]'",
    "fa4": "pip install 'hedgerow[fa4]'",
    "varlen": "torch 2.11 or newer with CUDA",
    "sdpa": "",
}
LONG_TOKENS = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What one layer's attention is.

    dtype: "float32", "bfloat16" or "float16"
    longest: tokens of the longest sequence this kernel may see
    biased: numbers are added to its scores (MPNet, DeBERTa)
    """

    head_dim: int
    num_heads: int
    num_kv_heads: int
    causal: bool
    window: int | None
    longest: int
    dtype: str
    biased: bool = False

    @property
    def two_sided_window(self) -> bool:
        return self.window is not None and not self.causal and self.window < self.longest - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Have:
    """arch: compute capability as major * 10 + minor (90 is Hopper, 100 Blackwell)."""

    arch: int
    installed: frozenset[BackendName]
    failed: frozenset[BackendName] = frozenset()


@dataclass(frozen=True, slots=True)
class Choice:
    """The kernel, and one sentence that says why it and none before it."""

    name: BackendName
    reason: str


def choose(need: Need, have: Have, wanted: str = "auto") -> Choice:
    """The first backend of this card's order that can compute the layer and is installed.

    `wanted` names one to try before all others. SDPA, sequence by sequence, always can.
    """
    order: list[BackendName] = _order(need, have.arch)
    order = [*(name for name in BACKENDS if name == wanted), *order]
    passed: dict[str, list[str]] = {}
    for name in order:
        reason = _cannot(name, need, have)
        if reason is None:
            why = "asked for" if name == wanted else _why(name, need, have.arch)
            others = [f"not {' or '.join(names)}: {no}" for no, names in passed.items()]
            return Choice(name, "; ".join([why, *others]))
        names = passed.setdefault(reason, [])
        names += [name] * (name not in names)
    raise AssertionError("SDPA computes every attention")


def _order(need: Need, arch: int) -> list[BackendName]:
    """Best first. FlashAttention-4 is the fastest in general; FlashInfer's fa3 beats it on
    grouped heads at very long sequences (the published experience this table starts from)."""
    if 90 <= arch < 100:
        long_grouped = need.longest >= LONG_TOKENS and need.num_kv_heads < need.num_heads
        first: list[BackendName] = ["fa4", "flashinfer_fa3"]
        if long_grouped:
            first.reverse()
        return [*first, "flashinfer_fa2", "varlen", "sdpa"]
    if arch >= 100:
        return ["fa4", "flashinfer_fa2", "varlen", "sdpa"]
    return ["flashinfer_fa2", "varlen", "sdpa"]


def _why(name: BackendName, need: Need, arch: int) -> str:
    if name == "sdpa":
        return "what is left, one sequence after another, without graphs"
    if name == "varlen":
        return "torch's own ragged kernel"
    if name == "flashinfer_fa3" and need.longest >= LONG_TOKENS:
        return "grouped heads at long sequences"
    return f"first choice on compute capability {arch // 10}.{arch % 10}"


_Rule = Callable[[Need, Have], "str | None"]


def _cannot(name: BackendName, need: Need, have: Have) -> str | None:
    """Why a backend cannot serve this layer here; None when it can."""
    if name == "sdpa":
        return None
    if need.biased:
        return "no fused kernel adds a bias to the scores"
    if need.dtype == "float32":
        return "fused kernels multiply 16-bit numbers only"
    if name not in have.installed:
        return f"not installed ({INSTALL[name]})"
    if name in have.failed:
        return "it failed its trial on this card"
    return _RULES[name](need, have)


def _flashinfer(need: Need, dims: tuple[int, ...]) -> str | None:
    if need.head_dim not in dims:
        return f"no head_dim {need.head_dim}"
    if need.two_sided_window:
        return "no window that looks both ways"
    return None


def _fa3(need: Need, have: Have) -> str | None:
    if have.arch != 90:
        return "Hopper only"
    return _flashinfer(need, (64, 128, 256))


def _fa2(need: Need, have: Have) -> str | None:
    return _flashinfer(need, (64, 128, 256))


def _fa4(need: Need, have: Have) -> str | None:
    # Below Hopper and on consumer Blackwell its ragged kernels are not known to skip invalid tiles.
    if not 90 <= have.arch < 120:
        return f"not tried on compute capability {have.arch // 10}.{have.arch % 10}"
    limit = 256 if have.arch < 100 else 128
    if need.head_dim % 8 or not 8 <= need.head_dim <= limit:
        return f"no head_dim {need.head_dim}"
    return None


def _varlen(need: Need, have: Have) -> str | None:
    if need.head_dim % 8 or need.head_dim > 256:
        return f"no head_dim {need.head_dim}"
    return None


_RULES: dict[BackendName, _Rule] = {
    "flashinfer_fa3": _fa3,
    "flashinfer_fa2": _fa2,
    "fa4": _fa4,
    "varlen": _varlen,
}
