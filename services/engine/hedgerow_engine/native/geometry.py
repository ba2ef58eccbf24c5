"""What the generator must know of a model to write its program: shapes and kinds, no weights.

Two models of one geometry share one program; the number of layers is not part of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hedgerow_engine.native.attention_tile import AttentionSpec
from hedgerow_engine.native.embed import EmbedSpec
from hedgerow_engine.native.norms import NormKind
from hedgerow_engine.native.rungs import Rung
from hedgerow_shared.modelcard import PoolingMode

Activation = Literal["gelu", "gelu_tanh", "silu", "relu"]
TailActivation = Literal["identity", "tanh", "gelu", "gelu_tanh", "relu", "silu", "sigmoid"]


@dataclass(frozen=True, slots=True)
class TailStep:
    """One step after pooling, on one row, in float32.

    dense: a linear layer and an activation. layer, rms: a norm. unit: scaled to length 1.
    quantize: round(127 * tanh(x)), still float32
    """

    kind: Literal["dense", "layer", "rms", "unit", "quantize"]
    width_in: int
    width_out: int
    activation: TailActivation = "identity"
    eps: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """A transformer encoder or decoder read as an encoder.

    norm_first: norms stand before attention and MLP and one more at the end ("pre-norm");
        else after each residual sum ("post-norm")
    sandwich: with norm_first: what attention and MLP give is normed again before it is added
    gated: the MLP is act(gate x) * (up x); else act(up x)
    rotary: queries and keys are rotated by their place; qk_norm: normalised per head before
    windowed: some layer lets a row see only part of its sequence (causal, or a window)
    biased: scores begin at a number of the distance between key and row
    """

    embed: EmbedSpec
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    norm: NormKind
    eps: float
    norm_first: bool
    embed_norm: bool
    activation: Activation
    gated: bool = False
    rotary: bool = False
    qk_norm: bool = False
    sandwich: bool = False
    windowed: bool = False
    biased: bool = False
    poolings: tuple[PoolingMode, ...] = ("mean",)
    tail: tuple[TailStep, ...] = ()
    unit: bool = False

    @property
    def context_width(self) -> int:
        """Numbers per token that attention gives to the output projection."""
        return self.heads * self.head_dim

    @property
    def qkv_width(self) -> int:
        return (self.heads + 2 * self.kv_heads) * self.head_dim

    @property
    def narrow(self) -> bool:
        """Only one row of each sequence is wanted, so the last layer computes no other."""
        return self.poolings in (("cls",), ("lasttoken",))

    @property
    def output_width(self) -> int:
        """Numbers in one row of the answer."""
        return self.tail[-1].width_out if self.tail else self.hidden * len(self.poolings)

    @property
    def attention(self) -> AttentionSpec:
        group = self.heads // self.kv_heads
        return AttentionSpec(self.head_dim, group, self.windowed, self.biased)

    def problem(self, rung: Rung) -> str | None:
        """Why this rung cannot run it; None = it can."""
        widths = {
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "query, key and value width": self.qkv_width,
            "attention width": self.context_width,
        }
        for name, width in widths.items():
            if width % rung.columns:
                return f"{name} {width} is not a multiple of {rung.columns}"
        if self.head_dim % max(2 * rung.lanes, rung.lanes * rung.group):
            return f"head size {self.head_dim} is not a multiple of {2 * rung.lanes}"
        if self.heads % self.kv_heads:
            return f"{self.heads} query heads do not divide among {self.kv_heads} key heads"
        for step in self.tail:
            if step.width_in % rung.lanes:
                return f"a head of {step.width_in} inputs is not a multiple of {rung.lanes}"
        return None
