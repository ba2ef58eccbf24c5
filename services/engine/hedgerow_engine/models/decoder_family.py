"""Folders of decoder shape: what each family's config means, and the heads it may carry."""

from __future__ import annotations

import numpy as np

from hedgerow_engine.attention.base import AttentionSpec
from hedgerow_engine.layers.ops import Ops
from hedgerow_engine.models.base import Head, Model
from hedgerow_engine.models.config import Config
from hedgerow_engine.models.decoder import DecoderEncoder, Flavour
from hedgerow_engine.models.heads import ClassifierHead, label_step
from hedgerow_engine.models.tasks import row_heads
from hedgerow_engine.weightfile import RawTensor
from hedgerow_engine.weights import Weights
from hedgerow_shared.errors import StartupError
from hedgerow_shared.modelcard import ModelCard

_BIDIRECTIONAL = ("bidirectional_pplx_qwen3", "llama_bidirec", "eurobert")
_GEMMA = Flavour(head_norms=True, sandwich=True, norm_plus_one=True, scaled_embeddings=True)


def load_qwen3(card: ModelCard, weights: Weights, ops: Ops) -> Model:
    """Qwen3-Embedding, Qwen3-Reranker, pplx-embed: heads normed before they are rotated."""
    return _load(card, weights, ops, Flavour(head_norms=True))


def load_llama(card: ModelCard, weights: Weights, ops: Ops) -> Model:
    """Llama, Mistral, Qwen2, EuroBERT: they differ in biases, which the weights tell."""
    return _load(card, weights, ops, Flavour())


def load_gemma3(card: ModelCard, weights: Weights, ops: Ops) -> Model:
    """EmbeddingGemma and other text-only Gemma 3."""
    Config(card).only("attn_logit_softcapping")
    return _load(card, weights, ops, _GEMMA)


def _load(card: ModelCard, weights: Weights, ops: Ops, flavour: Flavour) -> Model:
    config = Config(card)
    encoder = DecoderEncoder(config, weights, ops, flavour, _specs(card, config), card.max_seq_len)
    scorer = _scorer(card, weights, ops)
    kinds = {m.kind for m in card.modules}
    if scorer is None and not kinds & {"pooling", "dense", "token_mask"}:
        raise StartupError(
            f"{card.folder / 'modules.json'}: missing: a {card.model_type} folder must say how it "
            "embeds or scores; add modules.json with a Pooling or a LogitScore module"
        )
    return Model(encoder, row_heads(card, weights, ops, scorer))


def _specs(card: ModelCard, config: Config) -> list[AttentionSpec]:
    heads, kv_heads, dim = config.heads()
    both_ways = card.model_type in _BIDIRECTIONAL or not config.flag("is_causal", True)
    both_ways = config.flag("use_bidirectional_attention", both_ways)
    scale = config.number("query_pre_attn_scalar", default=float(dim)) ** -0.5
    reach = _reach(config, both_ways)
    return [
        AttentionSpec(heads, kv_heads, dim, scale, not both_ways, reach if windowed else None)
        for windowed in _windowed(card, config)
    ]


def _reach(config: Config, both_ways: bool) -> int | None:
    """How far a windowed layer sees. The config counts the token itself when it looks back
    only, and both sides together when it looks both ways."""
    window = config.values.get("sliding_window")
    if window is None:
        return None
    return int(window) // 2 if both_ways else int(window) - 1


def _windowed(card: ModelCard, config: Config) -> list[bool]:
    count = config.integer("num_hidden_layers")
    if config.values.get("sliding_window") is None:
        return [False] * count
    if config.values.get("layer_types") is not None:
        return config.layer_kinds(count, first_full=False)
    if card.model_type.startswith("gemma3"):
        every = config.integer("sliding_window_pattern", "_sliding_window_pattern", default=6)
        return config.layer_kinds(count, every, first_full=False)
    if card.model_type == "mistral":
        return [True] * count
    if config.flag("use_sliding_window", False):
        return [i >= config.integer("max_window_layers") for i in range(count)]
    return [False] * count


def _scorer(card: ModelCard, weights: Weights, ops: Ops) -> Head | None:
    """A classifier on the last token, or the difference of two of the model's own logits."""
    hidden = card.hidden_size
    if not card.is_scorer:
        return None
    module = next((m for m in card.modules if m.kind == "logit_score"), None)
    if module is None:
        shape = (card.num_labels, hidden)
        return ClassifierHead([label_step(weights, ops, "score", shape)], "lasttoken")
    name = "lm_head.weight" if weights.has("lm_head.weight") else "embed_tokens.weight"
    logits = weights.take(name, (card.vocab_size, hidden))
    file = module.folder / "config.json"

    def row(key: str) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        token = module.config.get(key)
        if not isinstance(token, int) or not 0 <= token < card.vocab_size:
            raise StartupError(f"{file}: {key} is {token!r}; it must be a token id of this model")
        return RawTensor(name, logits.dtype, logits.data[token : token + 1], logits.file).float32()

    score = row("true_token_id")
    if module.config.get("false_token_id") is not None:
        score = score - row("false_token_id")
    raw = RawTensor(name, "F32", np.ascontiguousarray(score), logits.file)
    return ClassifierHead([ops.float_linear(raw, None)], "lasttoken")
