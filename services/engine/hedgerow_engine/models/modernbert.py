"""ModernBERT: rotary, gated, norms before, and most layers see only their neighbourhood."""

from __future__ import annotations

from torch import Tensor

from hedgerow_engine.attention.base import AttentionSpec, attend
from hedgerow_engine.layers.ops import Ops
from hedgerow_engine.layers.rotary import RopeParams, Rotary, Rotation
from hedgerow_engine.models.base import Head, Model, ModelInputs
from hedgerow_engine.models.bert import Block
from hedgerow_engine.models.config import Config
from hedgerow_engine.models.heads import ClassifierHead, label_step, norm_step
from hedgerow_engine.models.rope import angles
from hedgerow_engine.models.tasks import row_heads
from hedgerow_engine.weights import Weights, split
from hedgerow_shared.modelcard import ModelCard, PoolingMode


class ModernBertLayer:
    """Norm, attention, add; norm, gated MLP, add. The first layer has no attention norm."""

    def __init__(self, config: Config, block: Block, spec: AttentionSpec, *, first: bool) -> None:
        hidden, inner = config.hidden_size, config.integer("intermediate_size")
        self.spec, self.ops = spec, block.ops
        attention, mlp, norm = (config.flag(f"{n}_bias") for n in ("attention", "mlp", "norm"))
        self.attention_norm = None if first else block.norm("attn_norm", hidden, bias=norm)
        self.qkv_proj = block.linear("attn.Wqkv", 3 * hidden, hidden, bias=attention)
        self.o_proj = block.linear("attn.Wo", hidden, hidden, bias=attention)
        self.mlp_norm = block.norm("mlp_norm", hidden, bias=norm)
        weight = block.weights.take(f"{block.prefix}mlp.Wi.weight", (2 * inner, hidden))
        gate, up = split(weight, 2)
        biases = None
        if mlp:
            halves = split(block.bias("mlp.Wi", 2 * inner), 2)
            biases = halves[0], halves[1]
        self.gate_up_proj = block.ops.gated_linear(gate, up, config.mlp_activation(), biases)
        self.down_proj = block.linear("mlp.Wo", hidden, inner, bias=mlp)

    def forward(self, residual: Tensor, rotation: Rotation, inputs: ModelInputs) -> Tensor:
        spec, ops, norm = self.spec, self.ops, self.attention_norm
        normed = residual if norm is None else ops.norm(norm, residual)
        qkv = self.qkv_proj(normed).view(-1, 3, spec.num_heads, spec.head_dim)
        q, k = ops.rotate(qkv[:, 0], rotation), ops.rotate(qkv[:, 1], rotation)
        context = attend(q, k, qkv[:, 2], inputs.attention, spec)
        normed, residual = ops.linear_add_norm(self.o_proj, context, residual, self.mlp_norm)
        return self.down_proj(self.gate_up_proj(normed), residual)


class ModernBertEncoder:
    """Satisfies `Encoder`."""

    def __init__(self, config: Config, weights: Weights, ops: Ops, max_positions: int) -> None:
        hidden, eps = config.hidden_size, config.number("norm_eps", zero=True)
        heads, dim = config.plain_heads()
        reach = config.integer("local_attention") // 2
        count = config.layers()
        every = config.integer("global_attn_every_n_layers")
        windows = [
            reach if windowed else None
            for windowed in config.layer_kinds(count, every, first_full=True)
        ]
        top = Block(weights, ops, "", eps)
        self.ops = ops
        name = "embeddings.tok_embeddings.weight"
        self.words = ops.table(weights.take(name, (config.vocab_size, hidden)))
        has_bias = config.flag("norm_bias")
        self.embedding_norm = top.norm("embeddings.norm", hidden, bias=has_bias)
        self.layers = [
            ModernBertLayer(
                config,
                Block(weights, ops, f"layers.{i}.", eps),
                AttentionSpec(heads, heads, dim, dim**-0.5, window=window),
                first=i == 0,
            )
            for i, window in enumerate(windows)
        ]
        self.final_norm = top.norm("final_norm", hidden, bias=has_bias)
        self.full, self.local = (
            Rotary(RopeParams(*angles(config, kind)), dim, max_positions)
            for kind in ("full_attention", "sliding_attention")
        )

    def forward(self, inputs: ModelInputs) -> Tensor:
        words = (self.words, inputs.input_ids)
        hidden_states = self.ops.embed_norm(words, None, None, self.embedding_norm)
        full, local = self.full.at(inputs.positions), self.local.at(inputs.positions)
        for layer in self.layers:
            rotation = full if layer.spec.window is None else local
            hidden_states = layer.forward(hidden_states, rotation, inputs)
        return self.ops.norm(self.final_norm, hidden_states)


def load_modernbert(card: ModelCard, weights: Weights, ops: Ops) -> Model:
    """ModernBertModel, ...ForMaskedLM as an embedder, ...ForSequenceClassification."""
    config = Config(card)
    encoder = ModernBertEncoder(config, weights, ops, card.max_seq_len)
    scorer = _scorer(card, config, weights, ops)
    weights.skip("head.*", "decoder.*")
    return Model(encoder, row_heads(card, weights, ops, scorer))


def _scorer(card: ModelCard, config: Config, weights: Weights, ops: Ops) -> Head | None:
    if not card.is_scorer:
        return None
    hidden = card.hidden_size
    activation, bias = config.activation("classifier_activation"), config.flag("classifier_bias")
    block = Block(weights, ops, "head.", config.number("norm_eps", zero=True))
    norm = block.norm("norm", hidden, bias=config.flag("norm_bias"))
    mean = config.choice("classifier_pooling", "cls", "mean") == "mean"
    mode: PoolingMode = "mean" if mean else "cls"
    steps = [
        label_step(weights, ops, "head.dense", (hidden, hidden), activation, bias=bias),
        norm_step(ops, norm),
        label_step(weights, ops, "classifier", (card.num_labels, hidden)),
    ]
    return ClassifierHead(steps, mode)
