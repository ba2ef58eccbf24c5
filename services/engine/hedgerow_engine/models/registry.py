"""Which file builds which family, and which families are refused by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hedgerow_engine.layers.ops import Ops
from hedgerow_engine.models import bert_family, decoder_family
from hedgerow_engine.models.base import Model
from hedgerow_engine.models.checks import check_card, skip_classifier
from hedgerow_engine.models.modernbert import load_modernbert
from hedgerow_engine.models.rotary_bert import load_gte, load_nomic
from hedgerow_engine.weights import Weights
from hedgerow_shared.errors import StartupError
from hedgerow_shared.modelcard import ModelCard

Loader = Callable[[ModelCard, Weights, Ops], Model]

FAMILIES: Mapping[str, Loader] = {
    "bert": bert_family.load_bert,
    "roberta": bert_family.load_roberta,
    "xlm-roberta": bert_family.load_roberta,
    "camembert": bert_family.load_roberta,
    "mpnet": bert_family.load_mpnet,
    "distilbert": bert_family.load_distilbert,
    "deberta-v2": bert_family.load_deberta,
    "modernbert": load_modernbert,
    "gte": load_gte,
    "new": load_gte,
    "nomic_bert": load_nomic,
    "qwen3": decoder_family.load_qwen3,
    "bidirectional_pplx_qwen3": decoder_family.load_qwen3,
    "qwen2": decoder_family.load_llama,
    "llama": decoder_family.load_llama,
    "llama_bidirec": decoder_family.load_llama,
    "mistral": decoder_family.load_llama,
    "eurobert": decoder_family.load_llama,
    "gemma3_text": decoder_family.load_gemma3,
}
_REFUSED: Mapping[str, str] = {
    "jina_bert": "its ALiBi attention is not built here",
    "jina_embeddings_v3": "its task adapters (LoRA) are not built here",
    "xlm-roberta-flash": "its task adapters (LoRA) are not built here",
    "gemma2": "its capped attention scores are not built here",
    "deberta": "only deberta-v2 and v3 are built here",
}
_REMOTE_BERT = ("JinaBert", "jina-bert")


def load_model(card: ModelCard, weights: Weights, ops: Ops) -> Model:
    """Build the model of a folder. Raises StartupError naming what is not supported or wrong."""
    check_card(card)
    file = card.trunk / "config.json"
    reason = _REFUSED.get(card.model_type)
    # JinaBERT calls itself "bert" and shows its own code only in auto_map.
    if any(name in str(card.config.get("auto_map", "")) for name in _REMOTE_BERT):
        reason = _REFUSED["jina_bert"]
    if reason is not None:
        raise StartupError(f"{file}: model_type {card.model_type!r} is not supported: {reason}")
    loader = FAMILIES.get(card.model_type)
    if loader is None:
        raise StartupError(
            f"{file}: model_type {card.model_type!r} is not supported "
            f"(supported: {', '.join(sorted(FAMILIES))})"
        )
    model = loader(card, weights, ops)
    skip_classifier(card, weights)
    weights.finish()
    return model
