"""Folders of decoder shape: what each family's config means, and the heads it may carry."""

from __future__ import annotations

from hedgerow_engine.attention.base import AttentionSpec
from hedgerow_engine.layers.ops import Ops
from hedgerow_engine.models.base import Head, Model
from hedgerow_engine.models.config import Config
from hedgerow_engine.models.decoder import DecoderEncoder, Flavour
from hedgerow_engine.models.decoder_config import both_ways, reaches, softmax_scale
from hedgerow_engine.models.heads import ClassifierHead, label_step
from hedgerow_engine.models.logit_score import score_rows
from hedgerow_engine.models.tasks import row_heads
from hedgerow_engine.weights import Weights
from hedgerow_shared.errors import StartupError
from hedgerow_shared.modelcard import ModelCard

_GEMMA = Flavour(head_norms=True, sandwich=True, norm_plus_one=True, scaled_embeddings=True)


def load_qwen3(card: ModelCard, weights: Weights, ops: Ops) -> Model:
    """Qwen3-Embedding, Qwen3-Reranker, pplx-embed: heads normed before they are rotated."""
    return _load(card, weights, ops, Flavour(head_norms=True))


def load_llama(card: ModelCard, weights: Weights, ops: Ops) -> Model:
    """Llama, Mistral, Qwen2, EuroBERT: they differ in biases and windows."""
    return _load(card, weights, ops, Flavour())


def load_gemma3(card: ModelCard, weights: Weights, ops: Ops) -> Model:
    """EmbeddingGemma and other text-only Gemma 3."""
    Config(card).only("attn_logit_softcapping")
    return _load(card, weights, ops, _GEMMA)


def _load(card: ModelCard, weights: Weights, ops: Ops, flavour: Flavour) -> Model:
    config = Config(card)
    encoder = DecoderEncoder(config, weights, ops, flavour, _specs(config), card.max_seq_len)
    scorer = _scorer(card, weights, ops)
    kinds = {m.kind for m in card.modules}
    if scorer is None and not kinds & {"pooling", "dense", "token_mask"}:
        raise StartupError(
            f"{card.folder / 'modules.json'}: missing: a {card.model_type} folder must say how it "
            "embeds or scores; add modules.json with a Pooling or a LogitScore module"
        )
    return Model(encoder, row_heads(card, weights, ops, scorer))


def _specs(config: Config) -> list[AttentionSpec]:
    heads, kv_heads, dim = config.heads()
    scale, causal = softmax_scale(config, dim), not both_ways(config)
    return [AttentionSpec(heads, kv_heads, dim, scale, causal, reach) for reach in reaches(config)]


def _scorer(card: ModelCard, weights: Weights, ops: Ops) -> Head | None:
    """A classifier on the last token, or the difference of two of the model's own logits."""
    if not card.is_scorer:
        return None
    rows = score_rows(card, weights)
    if rows is not None:
        return ClassifierHead([ops.float_linear(rows, None)], "lasttoken")
    shape = (card.num_labels, card.hidden_size)
    return ClassifierHead([label_step(weights, ops, "score", shape, bias=False)], "lasttoken")
