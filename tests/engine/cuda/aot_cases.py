"""Compiles every Triton kernel for Hopper without a card and prints what each one needs.

Run by `test_kernel_aot` in a process of its own, because there Triton must not interpret:

    python tests/engine/cuda/aot_cases.py      one JSON object: kernel -> registers, spills
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from hedgerow_engine.layers.kernels import tritonpool, tritons

HOPPER = GPUTarget("cuda", 90, 32)
_CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
_TYPES = {"B": "*bf16", "F": "*fp32", "i": "i32", "f": "fp32", "J": "*i32", "Q": "*i8", "U": "*u8"}

# name -> (kernel, types of the run-time arguments, compile-time arguments, warps), with the
# sizes of MiniLM (384), BERT-base (768), BERT-large and Qwen3-0.6B (1024, heads of 128).
CASES: dict[str, tuple[Any, dict[str, str], dict[str, Any], int]] = {}


def _case(name: str, kernel: Any, types: str, fixed: dict[str, Any], warps: int = 4) -> None:
    free = [n for n in kernel.arg_names if n not in fixed]
    assert len(free) == len(types.replace(" ", "")), (name, free)
    signature = {n: _TYPES[t] for n, t in zip(free, types.replace(" ", ""), strict=True)}
    CASES[name] = (kernel, signature, fixed, warps)


for width, block in ((384, 512), (768, 1024), (1024, 1024)):
    flags = {"BIAS": True, "RESIDUAL": True, "SHIFT": True, "TOTAL": True, "RMS": False}
    _case(f"add_norm {width}", tritons.add_norm, "BFBFFBBiiif", {**flags, "BLOCK": block})
    _case(
        f"embed_norm {width}",
        tritons.embed_norm,
        "JBJBJBFFBif",
        {"POSITIONS": True, "TYPES": True, "SHIFT": True, "RMS": False, "BLOCK": block},
    )
    _case(
        f"pool mean {width}",
        tritonpool.pool,
        "BJJJFFQUiii",
        {"MODE": "mean", "PLACED": False, "ROWS": min(32, 16384 // block), "BLOCK": block},
        8,
    )
_case(
    "add_norm rms 1024",
    tritons.add_norm,
    "BFBFFBBiiif",
    {"BIAS": False, "RESIDUAL": True, "SHIFT": False, "TOTAL": True, "RMS": True, "BLOCK": 1024},
)
_case(
    "pool last 1024",
    tritonpool.pool,
    "BJJJFFQUiii",
    {"MODE": "lasttoken", "PLACED": False, "ROWS": 16, "BLOCK": 1024},
    8,
)
_case(
    "pool last 4096",
    tritonpool.pool,
    "BJJJFFQUiii",
    {"MODE": "lasttoken", "PLACED": False, "ROWS": 4, "BLOCK": 4096},
    8,
)
for mode in ("max", "cls", "mean"):
    _case(
        f"reduce {mode}, any width",
        tritonpool.reduce,
        "BJJJFii",
        {"MODE": mode, "PLACED": False, "ROWS": 8, "BLOCK": 512},
    )
_case(
    "bias_activation gelu",
    tritons.bias_activation,
    "BFBii",
    {"BIAS": True, "ACT": "gelu", "BLOCK": 1024},
)
_case("gated silu", tritons.gated, "BBi", {"ACT": "silu", "BLOCK": 1024})
_case("gated gelu", tritons.gated, "BBi", {"ACT": "gelu", "BLOCK": 1024})
_case(
    "norm_rope 16 x 128", tritons.norm_rope, "BFFFBiiiif", {"NORM": True, "HEADS": 16, "HALF": 64}
)
_case("norm_rope 8 x 128", tritons.norm_rope, "BFFFBiiiif", {"NORM": True, "HEADS": 8, "HALF": 64})
_case(
    "norm_rope 12 x 64", tritons.norm_rope, "BFFFBiiiif", {"NORM": False, "HEADS": 16, "HALF": 32}
)


def compile_one(name: str) -> dict[str, Any]:
    """Registers of a thread, bytes spilled to local memory, bytes of the cubin, and the maximum
    instructions that it uses."""
    kernel, signature, fixed, warps = CASES[name]
    names = list(kernel.arg_names)
    every = {n: "constexpr" if n in fixed else signature[n] for n in names}
    places = {(i,): fixed[n] for i, n in enumerate(names) if n in fixed}
    # Tensors of torch begin at multiples of 16 bytes, and a launch tells the compiler so.
    aligned = {(i,): [["tt.divisibility", 16]] for i, n in enumerate(names) if every[n][0] == "*"}
    source = ASTSource(fn=kernel, signature=every, constexprs=places, attrs=aligned)
    made = triton.compile(source, target=HOPPER, options={"num_warps": warps})
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "kernel.cubin"
        cubin.write_bytes(made.asm["cubin"])
        said = subprocess.run(
            [str(_CUOBJDUMP), "-res-usage", str(cubin)], capture_output=True, text=True, check=True
        ).stdout
    usage = {key: int(value) for key, value in re.findall(r"(REG|STACK|LOCAL):(\d+)", said)}
    return {
        "registers": usage["REG"],
        "spill_bytes": usage["STACK"] + usage["LOCAL"],
        "cubin_bytes": len(made.asm["cubin"]),
        "maxima": sorted(set(re.findall(r"\bmax\.\S+", made.asm["ptx"]))),
    }


if __name__ == "__main__":
    json.dump({name: compile_one(name) for name in CASES}, sys.stdout, indent=1)
