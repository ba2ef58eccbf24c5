"""Which kernel a layer gets: a table over cards, head sizes, windows, lengths and wheels."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hedgerow_engine.attention.base import AttentionSpec
from hedgerow_engine.attention.choose import BACKENDS, BackendName, Have, Need, choose
from hedgerow_engine.device.cuda.attention import Kernels
from hedgerow_engine.device.cuda.rehearsal import Rehearsal

EVERYTHING = frozenset(BACKENDS)
PLAIN: frozenset[BackendName] = frozenset({"varlen", "sdpa"})
NO_FA4 = EVERYTHING - {"fa4"}
MINILM: dict[str, Any] = {"head_dim": 32, "num_heads": 12, "num_kv_heads": 12}
BERT: dict[str, Any] = {"head_dim": 64, "num_heads": 12, "num_kv_heads": 12}
QWEN: dict[str, Any] = {"head_dim": 128, "num_heads": 16, "num_kv_heads": 8, "causal": True}
MODERN = {**BERT, "window": 64}
MISTRAL = {**QWEN, "window": 512}
GEMMA: dict[str, Any] = {"head_dim": 256, "num_heads": 3, "num_kv_heads": 1, "window": 256}


def need(model: dict[str, Any], longest: int = 512, **more: Any) -> Need:
    plain = {"causal": False, "window": None, "dtype": "bfloat16", "longest": longest}
    return Need(**(plain | model | more))


TABLE = [
    # (what, card, installed, model, longest, backend)
    ("Hopper, all wheels, BERT", 90, EVERYTHING, BERT, 512, "fa4"),
    ("Hopper, all wheels, MiniLM", 90, EVERYTHING, MINILM, 512, "fa4"),
    ("Hopper, all wheels, Qwen3 short", 90, EVERYTHING, QWEN, 4096, "fa4"),
    ("Hopper, all wheels, Qwen3 very long", 90, EVERYTHING, QWEN, 8192, "flashinfer_fa3"),
    ("Hopper, all wheels, BERT very long", 90, EVERYTHING, BERT, 8192, "fa4"),
    ("Hopper, FlashInfer, BERT", 90, NO_FA4, BERT, 512, "flashinfer_fa3"),
    ("Hopper, FlashInfer, MiniLM", 90, NO_FA4, MINILM, 512, "varlen"),
    ("Hopper, FlashInfer, ModernBERT", 90, NO_FA4, MODERN, 512, "varlen"),
    ("Hopper, FlashInfer, a window wider than any text", 90, NO_FA4, MODERN, 64, "flashinfer_fa3"),
    ("Hopper, FlashInfer, Mistral", 90, NO_FA4, MISTRAL, 4096, "flashinfer_fa3"),
    ("Hopper, FlashInfer, Gemma both ways", 90, NO_FA4, GEMMA, 2048, "varlen"),
    ("Hopper, all wheels, ModernBERT", 90, EVERYTHING, MODERN, 512, "fa4"),
    ("Hopper, torch alone", 90, PLAIN, BERT, 512, "varlen"),
    ("Ampere, all wheels, BERT", 80, EVERYTHING, BERT, 512, "flashinfer_fa2"),
    ("Ampere, all wheels, MiniLM", 80, EVERYTHING, MINILM, 512, "varlen"),
    ("Ada, all wheels, Qwen3", 89, EVERYTHING, QWEN, 512, "flashinfer_fa2"),
    ("Blackwell, all wheels, BERT", 100, EVERYTHING, BERT, 512, "fa4"),
    (
        "Blackwell, all wheels, Gemma",
        100,
        EVERYTHING,
        {**GEMMA, "window": None},
        512,
        "flashinfer_fa2",
    ),
    ("Blackwell, FlashInfer, Qwen3", 100, NO_FA4, QWEN, 512, "flashinfer_fa2"),
    ("small Blackwell, all wheels, MiniLM", 120, EVERYTHING, MINILM, 512, "varlen"),
]


@pytest.mark.parametrize("row", TABLE, ids=[row[0] for row in TABLE])
def test_the_table(row: tuple[str, int, frozenset[BackendName], dict[str, Any], int, str]) -> None:
    _, arch, installed, model, longest, backend = row
    choice = choose(need(model, longest), Have(arch=arch, installed=installed))
    assert choice.name == backend, choice.reason


@pytest.mark.parametrize("arch", [80, 86, 89, 90, 100, 103, 110, 120])
@pytest.mark.parametrize("head_dim", [8, 24, 32, 64, 80, 96, 128, 192, 256, 512])
@pytest.mark.parametrize("window", [None, 64])
@pytest.mark.parametrize("causal", [True, False])
def test_no_choice_is_outside_what_its_backend_computes(
    arch: int, head_dim: int, window: int | None, causal: bool
) -> None:
    for longest in (16, 512, 16384):
        for missing in (frozenset(), {"fa4"}, {"fa4", "flashinfer_fa3"}, {"fa4", "varlen"}):
            what = need(
                {"head_dim": head_dim, "num_heads": 8, "num_kv_heads": 2},
                longest,
                window=window,
                causal=causal,
            )
            name = choose(what, Have(arch=arch, installed=EVERYTHING - missing)).name
            two_sided = window is not None and not causal and window < longest - 1
            if name.startswith("flashinfer"):
                assert head_dim in (64, 128, 256) and not two_sided
                assert name != "flashinfer_fa3" or arch == 90
            if name == "fa4":
                assert 90 <= arch < 120 and head_dim % 8 == 0 and head_dim <= 256
                assert arch == 90 or head_dim <= 128
            if name == "varlen":
                assert head_dim % 8 == 0 and head_dim <= 256
            assert name not in missing


def test_float32_and_biased_scores_go_to_the_oracle() -> None:
    have = Have(arch=90, installed=EVERYTHING)
    assert choose(need(BERT, dtype="float32"), have).name == "sdpa"
    assert choose(need(BERT, biased=True), have).name == "sdpa"


def test_what_was_asked_for_comes_first_and_says_why_if_it_cannot() -> None:
    have = Have(arch=90, installed=EVERYTHING)
    assert choose(need(BERT), have, "varlen").name == "varlen"
    choice = choose(need(MINILM), have, "flashinfer_fa3")
    assert choice.name == "fa4" and "not flashinfer_fa3: no head_dim 32" in choice.reason


def test_the_reason_names_the_wheel_that_would_help() -> None:
    reason = choose(need(BERT), Have(arch=90, installed=PLAIN)).reason
    assert "hedgerow[fa4]" in reason and "hedgerow[cuda]" in reason


def test_a_backend_that_fails_its_trial_is_left_out_with_one_line() -> None:
    """Here FlashInfer and FlashAttention-4 "are installed" but cannot run; torch's kernel has no
    CPU either. The oracle serves, and the log says what happened."""
    log: list[str] = []
    kernels = Kernels(
        Rehearsal(),
        dtype=torch.bfloat16,
        installed=EVERYTHING,
        wanted="auto",
        log=log.append,
    )
    from hedgerow_engine.device.cuda.attention import KeyAttention, trial_inputs, trial_lengths

    spec = AttentionSpec(4, 2, 64, 0.125, causal=True)
    q, k, v = trial_inputs(Rehearsal(), spec, torch.bfloat16)
    attention = KeyAttention(kernels, trial_lengths(Rehearsal()))
    out = attention.run(q, k, v, spec, None)
    assert out.shape == (16, 256) and bool(torch.isfinite(out).all())
    failed = [line for line in log if "does not work here" in line]
    assert {line.split()[1] for line in failed} == EVERYTHING - {"sdpa"}
    assert log[-1].startswith("attention sdpa for 4/2 heads of 64, causal")
    assert all("\n" not in line for line in log)
