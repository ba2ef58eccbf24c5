"""Blocks of named 64-bit words through which Python talks to a program.

FRAME is one pass, MODEL one loaded model, LAYER one of its layers. A word is a number or an
address; both sides use the names, so that no offset is written twice.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hedgerow_engine.native.ir import Int, Kernel, Ptr

WORD_BYTES = 8
Words = npt.NDArray[np.int64]


class Layout:
    """The order of a block's words."""

    def __init__(self, names: str) -> None:
        self._places = {name: i for i, name in enumerate(names.split())}

    @property
    def num_bytes(self) -> int:
        return len(self._places) * WORD_BYTES

    def new(self, count: int = 1) -> Words:
        """Blocks of zeros: [count, words]."""
        return np.zeros((count, len(self._places)), np.int64)

    def put(self, words: Words, **values: int) -> None:
        """Set words of one block [words] by name."""
        places = self._places
        for name, value in values.items():
            words[places[name]] = value

    def int(self, k: Kernel, block: Ptr, name: str) -> Int:
        return k.load_int(block + self._places[name] * WORD_BYTES)

    def ptr(self, k: Kernel, block: Ptr, name: str) -> Ptr:
        return k.load_ptr(block + self._places[name] * WORD_BYTES)


FRAME = Layout(
    # The pass: ids and cu_seqlens int32, the latter from the pass's first sequence on.
    "num_tokens num_seqs ids cu_seqlens pair_start "
    # Where rows of the answer come from and go: see pooling.py. pools may be null.
    "num_rows pools pooled unit "
    # Arena: residual stream float32, activations, projections, attention's output, places
    # int32; then per thread: local buffers, attention scratch of scratch_step bytes.
    "x acts qkv context places local scratch scratch_step "
    # 1 = the last layer goes on with one row per sequence, kept in `chosen`, float32.
    "narrow chosen"
)
MODEL = Layout(
    "word table embed_norm embed_norm_bias layers num_layers final_norm final_norm_bias tail"
)
LAYER = Layout(
    "qkv qkv_bias o o_bias up up_bias down down_bias "
    "attention_norm attention_norm_bias mlp_norm mlp_norm_bias "
    "after_attention_norm after_mlp_norm "
    "q_norm k_norm rope back ahead bias bias_step"
)
TAIL = Layout("weight bias")
# One row of the answer: tokens [begin, end) of the pass; `begin` is the `offset`-th token of its
# sequence.
POOL = Layout("begin end offset")
