"""The ladder of instruction sets the generator can write for, best first.

One generator, three numbers: how many float32 lanes a vector has, how many rows and vectors a
register tile has, and which instruction multiplies. Every rung moves weights and activations in
groups of four bytes: two bfloat16 or one float32. So layouts and loops are the same for all.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

NativeDType = Literal["bfloat16", "float32"]

GROUP_BYTES = 4


@dataclass(frozen=True, slots=True)
class Rung:
    """One instruction set.

    lanes: float32 numbers in a vector register
    rows, vectors: the register tile: `rows` x `vectors` accumulators, `vectors` weight
        registers and one broadcast must fit the register file; a column block is
        `vectors * lanes` columns
    features: what LLVM must report of the CPU before anything is compiled: code for an
        instruction that is not there aborts the process
    portable_cpu: the LLVM CPU name that has this rung and no better one, for tests that force
        a lower rung than the machine's
    """

    name: str
    machine: Literal["x86_64", "aarch64"]
    dtype: NativeDType
    lanes: int
    rows: int
    vectors: int
    features: tuple[str, ...]
    portable_cpu: str

    @property
    def act_bytes(self) -> int:
        """Bytes of an activation or a weight."""
        return 2 if self.dtype == "bfloat16" else 4

    @property
    def group(self) -> int:
        """Numbers in four bytes: consecutive k values that one multiply takes."""
        return GROUP_BYTES // self.act_bytes

    @property
    def vector_bytes(self) -> int:
        return self.lanes * GROUP_BYTES

    @property
    def columns(self) -> int:
        """Columns of a packed weight block."""
        return self.lanes * self.vectors

    @property
    def has_scalef(self) -> bool:
        return "avx512f" in self.features


_AVX512 = ("avx512f", "avx512bw", "avx512dq", "avx512vl")
AVX512BF16 = Rung(
    "avx512bf16", "x86_64", "bfloat16", 16, 8, 2, (*_AVX512, "avx512bf16"), "cooperlake"
)
AVX512 = Rung("avx512", "x86_64", "float32", 16, 8, 2, _AVX512, "skylake-avx512")
AVX2 = Rung("avx2", "x86_64", "float32", 8, 6, 2, ("avx2", "fma", "f16c"), "haswell")
# Compiles, was never run: nobody had the machine. Only when forced by name.
NEON_BF16 = Rung("neonbf16", "aarch64", "bfloat16", 4, 6, 4, ("bf16", "neon"), "neoverse-v1")

LADDER = (AVX512BF16, AVX512, AVX2)
BY_NAME: Mapping[str, Rung] = {rung.name: rung for rung in (*LADDER, NEON_BF16)}


def missing_features(rung: Rung, features: Mapping[str, bool]) -> list[str]:
    """What this CPU lacks for `rung`; empty = it can run it."""
    if platform.machine().lower().replace("amd64", "x86_64") != rung.machine:
        return [f"a {rung.machine} CPU"]
    return [feature for feature in rung.features if not features.get(feature)]


def choose_rung(
    features: Mapping[str, bool], dtype: str = "auto", forced: str | None = None
) -> Rung | str:
    """The best rung of this CPU for `dtype`, or the reason why there is none.

    features: LLVM's names of the host's features. dtype: "auto", "bfloat16" or "float32".
    forced: a rung's name, one of BY_NAME; it must still be one this CPU can run.
    """
    wanted = LADDER if forced is None else (BY_NAME[forced],)
    reasons: list[str] = []
    for rung in wanted:
        if dtype not in ("auto", rung.dtype):
            continue
        missing = missing_features(rung, features)
        if not missing:
            return rung
        reasons.append(f"{rung.name} needs {', '.join(missing)}")
    if not reasons and forced is not None:
        own = BY_NAME[forced].dtype
        return f"the native rung {forced} computes in {own}, not in {dtype}"
    if not reasons:
        return f"no native kernels for {dtype} (there are bfloat16 and float32)"
    return f"this CPU lacks what the native kernels need: {'; '.join(reasons)}"
