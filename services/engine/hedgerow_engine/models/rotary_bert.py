"""BERT with rotary positions and a gated MLP: GTE (v1.5, multilingual) and Nomic."""

from __future__ import annotations

from torch import Tensor

from hedgerow_engine.attention.base import AttentionSpec, attend
from hedgerow_engine.layers.ops import GatedLinear, Ops
from hedgerow_engine.layers.rotary import RopeParams, Rotary, Rotation
from hedgerow_engine.models.base import Head, Model, ModelInputs
from hedgerow_engine.models.bert import Block, Embeddings
from hedgerow_engine.models.config import Config
from hedgerow_engine.models.heads import ClassifierHead, label_step
from hedgerow_engine.models.rope import angles
from hedgerow_engine.models.rotary_config import biases, check_rotary_bert
from hedgerow_engine.models.tasks import row_heads
from hedgerow_engine.weights import Weights, split
from hedgerow_shared.modelcard import ModelCard

_GTE = {
    "layer": "encoder.layer",
    "qkv": "attention.qkv_proj",
    "o": "attention.o_proj",
    "attention_norm": "attn_ln",
    "down": "mlp.down_proj",
    "output_norm": "mlp_ln",
}
_NOMIC = {
    "layer": "encoder.layers",
    "qkv": "attn.Wqkv",
    "o": "attn.out_proj",
    "attention_norm": "norm1",
    "down": "mlp.fc2",
    "output_norm": "norm2",
}


class RotaryBertLayer:
    """Attention and gated MLP, each followed by residual and norm."""

    def __init__(
        self, config: Config, block: Block, names: dict[str, str], gated: GatedLinear
    ) -> None:
        hidden, inner = config.hidden_size, _inner(config)
        self.ops, self.gate_up_proj = block.ops, gated
        has = biases(config)
        self.qkv_proj = block.linear(names["qkv"], 3 * hidden, hidden, bias=has.attention)
        self.o_proj = block.linear(names["o"], hidden, hidden, bias=has.attention)
        self.attention_norm = block.norm(names["attention_norm"], hidden)
        self.down_proj = block.linear(names["down"], hidden, inner, bias=has.down)
        self.output_norm = block.norm(names["output_norm"], hidden)

    def forward(
        self, hidden_states: Tensor, rotation: Rotation, spec: AttentionSpec, inputs: ModelInputs
    ) -> Tensor:
        qkv = self.qkv_proj(hidden_states).view(-1, 3, spec.num_heads, spec.head_dim)
        q, k = self.ops.rotate(qkv[:, 0], rotation), self.ops.rotate(qkv[:, 1], rotation)
        context = attend(q, k, qkv[:, 2], inputs.attention, spec)
        hidden_states, _ = self.ops.linear_add_norm(
            self.o_proj, context, hidden_states, self.attention_norm
        )
        inner = self.gate_up_proj(hidden_states)
        return self.ops.linear_add_norm(self.down_proj, inner, hidden_states, self.output_norm)[0]


class RotaryBertEncoder:
    """Satisfies `Encoder`."""

    def __init__(
        self,
        embeddings: Embeddings,
        layers: list[RotaryBertLayer],
        spec: AttentionSpec,
        rotary: Rotary,
    ) -> None:
        self.embeddings, self.layers, self.spec, self.rotary = embeddings, layers, spec, rotary

    def forward(self, inputs: ModelInputs) -> Tensor:
        hidden_states = self.embeddings.forward(inputs)
        rotation = self.rotary.at(inputs.positions)
        for layer in self.layers:
            hidden_states = layer.forward(hidden_states, rotation, self.spec, inputs)
        return hidden_states


def load_gte(card: ModelCard, weights: Weights, ops: Ops) -> Model:
    """`gte` and its older name `new`: fused up and gate, biases everywhere but there."""
    config = Config(card)
    check_rotary_bert(config)
    activation, inner = config.mlp_activation(), _inner(config)

    def gated(block: Block) -> GatedLinear:
        name = f"{block.prefix}mlp.up_gate_proj.weight"
        up, gate = split(block.weights.take(name, (2 * inner, card.hidden_size)), 2)
        return ops.gated_linear(gate, up, activation)

    eps = config.number("layer_norm_eps", zero=True)
    layers = [
        RotaryBertLayer(config, block, _GTE, gated(block))
        for block in _blocks(config, weights, ops, _GTE, eps)
    ]
    embeddings = Embeddings(config, Block(weights, ops, "", eps))
    encoder = _encoder(card, config, embeddings, layers)
    return Model(encoder, row_heads(card, weights, ops, _scorer(card, weights, ops)))


def load_nomic(card: ModelCard, weights: Weights, ops: Ops) -> Model:
    """Nomic v1 and v1.5; the mixture-of-experts v2 is refused."""
    config = Config(card)
    check_rotary_bert(config)
    inner, has_bias = _inner(config), biases(config).up

    def gated(block: Block) -> GatedLinear:
        up, gate = (
            block.weights.take(f"{block.prefix}mlp.{n}.weight", (inner, card.hidden_size))
            for n in ("fc11", "fc12")
        )
        if not has_bias:
            return ops.gated_linear(gate, up, "silu")
        up_bias, gate_bias = (block.bias(f"mlp.{n}", inner) for n in ("fc11", "fc12"))
        return ops.gated_linear(gate, up, "silu", (gate_bias, up_bias))

    eps = config.number("layer_norm_eps", "layer_norm_epsilon", zero=True)
    layers = [
        RotaryBertLayer(config, block, _NOMIC, gated(block))
        for block in _blocks(config, weights, ops, _NOMIC, eps)
    ]
    embeddings = Embeddings(config, Block(weights, ops, "", eps), norm="emb_ln")
    encoder = _encoder(card, config, embeddings, layers)
    return Model(encoder, row_heads(card, weights, ops, _scorer(card, weights, ops)))


def _scorer(card: ModelCard, weights: Weights, ops: Ops) -> Head | None:
    """First token -> dense -> tanh -> labels."""
    scorer: Head | None = None
    if card.is_scorer:
        hidden = card.hidden_size
        first = label_step(weights, ops, "pooler.dense", (hidden, hidden), "tanh")
        last = label_step(weights, ops, "classifier", (card.num_labels, hidden))
        scorer = ClassifierHead([first, last])
    weights.skip("pooler.*", "classifier.*")
    return scorer


def _inner(config: Config) -> int:
    return config.integer("intermediate_size", "n_inner")


def _blocks(
    config: Config, weights: Weights, ops: Ops, names: dict[str, str], eps: float
) -> list[Block]:
    count = config.layers()
    return [Block(weights, ops, f"{names['layer']}.{i}.", eps) for i in range(count)]


def _encoder(
    card: ModelCard,
    config: Config,
    embeddings: Embeddings,
    layers: list[RotaryBertLayer],
) -> RotaryBertEncoder:
    heads, dim = config.plain_heads()
    spec = AttentionSpec(heads, heads, dim, dim**-0.5)
    rotary = Rotary(RopeParams(*angles(config)), dim, card.max_seq_len)
    return RotaryBertEncoder(embeddings, layers, spec, rotary)
