"""What a model is to its executor: an encoder over one ragged batch, and heads on its rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from torch import Tensor

from hedgerow_engine.attention.base import AttentionBackend
from hedgerow_engine.pooling import Pooler
from hedgerow_shared.ragged import Task


@dataclass(frozen=True, slots=True)
class ModelInputs:
    """Static inputs of one pass, already staged; and the planned attention and pooling.

    input_ids, positions, token_types: int32 [token bucket]; positions restart at 0 per sequence
    slots: rows of each output that is one per sequence or span
    """

    input_ids: Tensor
    positions: Tensor
    token_types: Tensor
    attention: AttentionBackend
    pooler: Pooler
    slots: int


class Encoder(Protocol):
    """The trunk of a model."""

    def forward(self, inputs: ModelInputs) -> Tensor:
        """-> hidden states [token bucket, hidden size], in the dtype of the products."""
        ...


Head: TypeAlias = Callable[[Tensor, ModelInputs], dict[str, Tensor]]
"""(hidden states, inputs) -> fields of `Pass` by name, float32 on the device."""


@dataclass(frozen=True, slots=True)
class Model:
    """An encoder with the heads its checkpoint has: one per task it offers.

    first_token: tokens at the start of a sequence that give no vector of their own (BGE-M3: 1)
    """

    encoder: Encoder
    heads: Mapping[Task, Head]
    first_token: int = 0

    def run(self, inputs: ModelInputs, tasks: tuple[Task, ...]) -> dict[str, Tensor]:
        """One pass through the trunk, then every head that is asked for."""
        hidden_states = self.encoder.forward(inputs)
        outputs: dict[str, Tensor] = {}
        for task in tasks:
            outputs |= self.heads[task](hidden_states, inputs)
        return outputs
