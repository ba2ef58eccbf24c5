"""The interface of attention backends and the words for the kinds of attention there are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from hedgerow_engine.layers.opaque import opaque
from hedgerow_engine.staging import Layout


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """What one layer's attention is; equal for all its batches.

    scale: factor on q @ k.T; 1.0 when folded into the query projection
    causal: a token sees itself and what is before it
    window: a token sees keys at most this far away (each side; behind only, when causal);
        None = the whole sequence
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    causal: bool = False
    window: int | None = None


class ScoreBias(Protocol):
    """Numbers added to the scores of a sequence by position: relative biases."""

    def __call__(self, q: Tensor, k: Tensor) -> Tensor:
        """Bias for sequences of one length L, broadcast to [num_seqs, num_heads, L, L].

        q, k: [num_seqs, num_heads, L, head_dim]; only DeBERTa's bias depends on them.
        """
        ...


class AttentionBackend(Protocol):
    """Ragged attention on one device."""

    def plan(self, layout: Layout) -> None:
        """Prepare for a batch: once, before the forward pass or the replay that needs it."""
        ...

    def run(
        self, q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec, bias: ScoreBias | None
    ) -> Tensor:
        """q [num_tokens, num_heads, head_dim], k and v [num_tokens, num_kv_heads, head_dim]
        -> [num_tokens, num_heads * head_dim]. Rows past the planned tokens are finite.

        The answer lives until the next `run`: a layer projects it at once.
        """
        ...


@opaque
def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    backend: AttentionBackend,
    spec: AttentionSpec,
    bias: ScoreBias | None = None,
) -> Tensor:
    """`backend.run` as one call of a plan: the lengths behind it are new at every step."""
    return backend.run(q, k, v, spec, bias)
