"""BERT and what was trained in its shape: MiniLM, BGE, E5, the first GTE, mxbai, arctic."""

from __future__ import annotations

import torch
from torch import Tensor

from hedgerow_engine.attention.base import AttentionSpec, attend
from hedgerow_engine.layers.ops import Activation, Linear, Norm, Ops
from hedgerow_engine.models.base import ModelInputs
from hedgerow_engine.models.config import Config
from hedgerow_engine.weights import Weights

NAMES = {
    "query": "attention.self.query",
    "key": "attention.self.key",
    "value": "attention.self.value",
    "o": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "up": "intermediate.dense",
    "down": "output.dense",
    "output_norm": "output.LayerNorm",
}


class Block:
    """Makes linears and norms from the tensors under one prefix, checking their shapes."""

    def __init__(self, config: Config, weights: Weights, ops: Ops, prefix: str) -> None:
        self.eps = config.number("layer_norm_eps")
        self.weights, self.ops, self.prefix = weights, ops, prefix

    def linear(
        self, name: str, out: int, size: int, activation: Activation | None = None
    ) -> Linear:
        weight = self.weights.take(f"{self.prefix}{name}.weight", (out, size))
        bias = self.weights.take(f"{self.prefix}{name}.bias", (out,))
        return self.ops.linear(weight, bias, activation)

    def fused(self, names: list[str], size: int) -> Linear:
        names = [self.prefix + name for name in names]
        weight = self.weights.fused([f"{n}.weight" for n in names], [(size, size)] * len(names))
        bias = self.weights.fused([f"{n}.bias" for n in names], [(size,)] * len(names))
        return self.ops.linear(weight, bias)

    def norm(self, name: str, size: int) -> Norm:
        weight = self.weights.take(f"{self.prefix}{name}.weight", (size,))
        bias = self.weights.take(f"{self.prefix}{name}.bias", (size,))
        return self.ops.layer_norm(weight, bias, self.eps)


class BertLayer:
    """Attention and MLP, each followed by residual and norm."""

    def __init__(self, config: Config, block: Block, names: dict[str, str]) -> None:
        hidden, inner = config.hidden_size, config.integer("intermediate_size")
        self.ops = block.ops
        self.qkv_proj = block.fused([names["query"], names["key"], names["value"]], hidden)
        self.o_proj = block.linear(names["o"], hidden, hidden)
        self.attention_norm = block.norm(names["attention_norm"], hidden)
        self.up_proj = block.linear(names["up"], inner, hidden, config.activation())
        self.down_proj = block.linear(names["down"], hidden, inner)
        self.output_norm = block.norm(names["output_norm"], hidden)

    def forward(self, hidden_states: Tensor, spec: AttentionSpec, inputs: ModelInputs) -> Tensor:
        qkv = self.qkv_proj(hidden_states).view(-1, 3, spec.num_heads, spec.head_dim)
        context = attend(qkv[:, 0], qkv[:, 1], qkv[:, 2], inputs.attention, spec)
        hidden_states, _ = self.ops.linear_add_norm(
            self.o_proj, context, hidden_states, self.attention_norm
        )
        inner = self.up_proj(hidden_states)
        return self.ops.linear_add_norm(self.down_proj, inner, hidden_states, self.output_norm)[0]


class BertEmbeddings:
    """Word, position and token type rows summed in float32, then normalised.

    first_position: rows of the position table before position 0 (RoBERTa: pad_token_id + 1)
    """

    def __init__(self, config: Config, block: Block, *, first_position: int = 0) -> None:
        hidden, types = config.hidden_size, config.values.get("type_vocab_size", 0)
        positions = config.integer("max_position_embeddings")
        take, table = block.weights.take, block.ops.table
        self.ops = block.ops
        self.words = table(take("embeddings.word_embeddings.weight", (config.vocab_size, hidden)))
        self.positions = table(take("embeddings.position_embeddings.weight", (positions, hidden)))[
            first_position:
        ]
        self.types = (
            table(take("embeddings.token_type_embeddings.weight", (types, hidden)))
            if types
            else None
        )
        self.norm = block.norm("embeddings.LayerNorm", hidden)

    def forward(self, inputs: ModelInputs) -> Tensor:
        total = torch.embedding(self.words, inputs.input_ids).float()
        total = total + torch.embedding(self.positions, inputs.positions)
        if self.types is not None and self.types.shape[0] > 1:
            total = total + torch.embedding(self.types, inputs.token_types)
        elif self.types is not None:
            total = total + self.types[0]
        return self.ops.norm(self.norm, total).to(self.ops.dtype)


class BertEncoder:
    """Satisfies `Encoder`."""

    def __init__(self, config: Config, weights: Weights, ops: Ops, *, first_position: int) -> None:
        config.only("position_embedding_type", "absolute")
        config.only("is_decoder", False)
        heads, _, head_dim = config.heads()
        self.spec = AttentionSpec(heads, heads, head_dim, head_dim**-0.5)
        self.embeddings = BertEmbeddings(
            config, Block(config, weights, ops, ""), first_position=first_position
        )
        self.layers = [
            BertLayer(config, Block(config, weights, ops, f"encoder.layer.{i}."), NAMES)
            for i in range(config.integer("num_hidden_layers"))
        ]

    def forward(self, inputs: ModelInputs) -> Tensor:
        hidden_states = self.embeddings.forward(inputs)
        for layer in self.layers:
            hidden_states = layer.forward(hidden_states, self.spec, inputs)
        return hidden_states
