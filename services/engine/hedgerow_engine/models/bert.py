"""BERT and what was trained in its shape: MiniLM, BGE, E5, XLM-R, MPNet, DistilBERT."""

from __future__ import annotations

from torch import Tensor

from hedgerow_engine.attention.base import AttentionSpec, ScoreBias, attend
from hedgerow_engine.layers.ops import Activation, Linear, Norm, Ops
from hedgerow_engine.models.base import ModelInputs
from hedgerow_engine.models.config import Config
from hedgerow_engine.weightfile import RawTensor
from hedgerow_engine.weights import Weights

BERT_NAMES = {
    "layer": "encoder.layer",
    "query": "attention.self.query",
    "key": "attention.self.key",
    "value": "attention.self.value",
    "o": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "up": "intermediate.dense",
    "down": "output.dense",
    "output_norm": "output.LayerNorm",
}
MPNET_NAMES = BERT_NAMES | {
    "query": "attention.attn.q",
    "key": "attention.attn.k",
    "value": "attention.attn.v",
    "o": "attention.attn.o",
    "attention_norm": "attention.LayerNorm",
}
DEBERTA_NAMES = BERT_NAMES | {
    "query": "attention.self.query_proj",
    "key": "attention.self.key_proj",
    "value": "attention.self.value_proj",
}
DISTILBERT_NAMES = {
    "layer": "transformer.layer",
    "query": "attention.q_lin",
    "key": "attention.k_lin",
    "value": "attention.v_lin",
    "o": "attention.out_lin",
    "attention_norm": "sa_layer_norm",
    "up": "ffn.lin1",
    "down": "ffn.lin2",
    "output_norm": "output_layer_norm",
}


class Block:
    """Makes linears and norms from the tensors under one prefix, checking their shapes. A bias
    the family has must be there: a checkpoint without one is incomplete."""

    def __init__(self, weights: Weights, ops: Ops, prefix: str, eps: float) -> None:
        self.weights, self.ops, self.prefix, self.eps = weights, ops, prefix, eps

    def linear(
        self,
        name: str,
        out: int,
        size: int,
        activation: Activation | None = None,
        *,
        bias: bool = True,
    ) -> Linear:
        weight = self.weights.take(f"{self.prefix}{name}.weight", (out, size))
        return self.ops.linear(weight, self.bias(name, out) if bias else None, activation)

    def fused(self, names: list[str], outs: list[int], size: int) -> Linear:
        """Several linears over the same rows as one."""
        names = [self.prefix + name for name in names]
        weight = self.weights.fused([f"{n}.weight" for n in names], [(o, size) for o in outs])
        bias = self.weights.fused([f"{n}.bias" for n in names], [(o,) for o in outs])
        return self.ops.linear(weight, bias)

    def norm(self, name: str, size: int, *, bias: bool = True) -> Norm:
        weight = self.weights.take(f"{self.prefix}{name}.weight", (size,))
        return self.ops.layer_norm(weight, self.bias(name, size) if bias else None, self.eps)

    def bias(self, name: str, size: int) -> RawTensor:
        return self.weights.take(f"{self.prefix}{name}.bias", (size,))


class BertLayer:
    """Attention and MLP, each followed by residual and norm."""

    def __init__(self, config: Config, block: Block, names: dict[str, str]) -> None:
        hidden, inner = config.hidden_size, config.integer("intermediate_size", "hidden_dim")
        self.ops = block.ops
        self.qkv_proj = block.fused(
            [names[n] for n in ("query", "key", "value")], [hidden] * 3, hidden
        )
        self.o_proj = block.linear(names["o"], hidden, hidden)
        self.attention_norm = block.norm(names["attention_norm"], hidden)
        self.up_proj = block.linear(names["up"], inner, hidden, config.mlp_activation())
        self.down_proj = block.linear(names["down"], hidden, inner)
        self.output_norm = block.norm(names["output_norm"], hidden)

    def forward(
        self,
        hidden_states: Tensor,
        spec: AttentionSpec,
        inputs: ModelInputs,
        bias: ScoreBias | None,
    ) -> Tensor:
        qkv = self.qkv_proj(hidden_states).view(-1, 3, spec.num_heads, spec.head_dim)
        context = attend(qkv[:, 0], qkv[:, 1], qkv[:, 2], inputs.attention, spec, bias)
        hidden_states, _ = self.ops.linear_add_norm(
            self.o_proj, context, hidden_states, self.attention_norm
        )
        inner = self.up_proj(hidden_states)
        return self.ops.linear_add_norm(self.down_proj, inner, hidden_states, self.output_norm)[0]


class Embeddings:
    """Word, position and token type rows, as far as there are any, summed in float32, normed.

    first_position: rows of the position table before position 0 (RoBERTa: pad_token_id + 1)
    """

    def __init__(
        self,
        config: Config,
        block: Block,
        *,
        positions: int = 0,
        first_position: int = 0,
        norm: str = "embeddings.LayerNorm",
    ) -> None:
        self.ops, hidden = block.ops, config.hidden_size
        types = config.token_types

        def table(name: str, rows: int) -> Tensor | None:
            name = f"embeddings.{name}_embeddings.weight"
            return block.ops.table(block.weights.take(name, (rows, hidden))) if rows else None

        words = table("word", config.vocab_size)
        assert words is not None
        self.words, self.types, places = (
            words,
            table("token_type", types),
            table("position", positions),
        )
        self.positions = None if places is None else places[first_position:]
        self.norm = block.norm(norm, hidden)

    def forward(self, inputs: ModelInputs) -> Tensor:
        positions = None if self.positions is None else (self.positions, inputs.positions)
        types = None if self.types is None else (self.types, inputs.token_types)
        words = (self.words, inputs.input_ids)
        return self.ops.embed_norm(words, positions, types, self.norm)


class BertEncoder:
    """Satisfies `Encoder`; the families of this shape differ by names, bias and embeddings."""

    def __init__(
        self,
        embeddings: Embeddings,
        layers: list[BertLayer],
        spec: AttentionSpec,
        biases: list[ScoreBias] | None = None,
    ) -> None:
        self.embeddings, self.layers, self.spec = embeddings, layers, spec
        self.biases: list[ScoreBias | None] = [*biases] if biases else [None] * len(layers)

    def forward(self, inputs: ModelInputs) -> Tensor:
        hidden_states = self.embeddings.forward(inputs)
        for layer, bias in zip(self.layers, self.biases, strict=True):
            hidden_states = layer.forward(hidden_states, self.spec, inputs, bias)
        return hidden_states
