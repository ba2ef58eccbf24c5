"""The arm64 rung compiles for a CPU that has its instructions. Nobody has run it yet, so it is
never chosen by itself."""

from __future__ import annotations

import llvmlite.binding as llvm

from hedgerow_engine.native.embed import EmbedSpec
from hedgerow_engine.native.gemm import UNROLL
from hedgerow_engine.native.geometry import Geometry
from hedgerow_engine.native.program import write_program
from hedgerow_engine.native.rungs import BY_NAME, LADDER, NEON_BF16

BERT = Geometry(
    embed=EmbedSpec(width=384, words="F32", positions=512, types=2),
    hidden=384,
    intermediate=1536,
    heads=12,
    kv_heads=12,
    head_dim=32,
    norm="layer",
    eps=1e-12,
    norm_first=False,
    embed_norm=True,
    activation="gelu",
    unit=True,
)


def test_a_whole_model_compiles_to_bfloat16_products() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    target = llvm.Target.from_triple("aarch64-unknown-linux-gnu")
    machine = target.create_target_machine(cpu=NEON_BF16.portable_cpu, opt=3, reloc="pic")
    module = llvm.parse_assembly(
        f'target triple = "{target.triple}"\n{write_program(BERT, NEON_BF16, threads=2)}'
    )
    text = machine.emit_assembly(module)
    tile = text[text.index("\ntile_gelu_6:") :]
    tile = tile[: tile.index(".Lfunc_end")]
    first, last = tile.index("bfdot"), tile.rindex("bfdot")
    assert tile.count("bfdot") == UNROLL * NEON_BF16.rows * NEON_BF16.vectors
    assert "[sp" not in tile[first:last], "the tile does not fit its registers"


def test_the_rung_must_be_asked_for_by_name() -> None:
    assert NEON_BF16 not in LADDER
    assert BY_NAME["neonbf16"] is NEON_BF16
    assert BERT.problem(NEON_BF16) is None
