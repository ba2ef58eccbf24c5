"""What no executor serves, whatever the family: refused before a weight is read."""

from __future__ import annotations

from hedgerow_engine.models.config import Config, refusal
from hedgerow_engine.models.defaults import DEFAULTS
from hedgerow_engine.weights import Weights
from hedgerow_shared.errors import StartupError
from hedgerow_shared.modelcard import ModelCard


def check_card(card: ModelCard) -> None:
    """Raises StartupError for a config that says the weights are not what they look like."""
    config = Config(card)
    for values in (card.config, config.values):
        quantized = values.get("quantization_config")
        if quantized is not None:
            wanted = "absent: quantised weights are not read here; take the original ones"
            raise refusal(config.file, "quantization_config", quantized, wanted)
    config.only("add_cross_attention", False)
    if card.model_type == "eurobert" or "rms_norm_eps" not in config.defaults:
        config.only("is_causal", False)
    if card.model_type == "modernbert" and config.values.get("sliding_window") is not None:
        config.only("sliding_window", config.integer("local_attention") // 2)
    _check_logit_score(card)


def skip_classifier(card: ModelCard, weights: Weights) -> None:
    """A folder that embeds may have been saved from a classifier, whose head then means nothing."""
    if not card.is_scorer and card.architecture.endswith("ForSequenceClassification"):
        weights.skip("classifier.*", "pre_classifier.*", "head.*", "pooler.*", "score.*")


def _check_logit_score(card: ModelCard) -> None:
    """Only a decoder has logits of its own whose difference is a score."""
    decoder = "rms_norm_eps" in DEFAULTS.get(card.model_type, {})
    if decoder or all(m.kind != "logit_score" for m in card.modules):
        return
    raise StartupError(
        f"{card.folder / 'modules.json'}: LogitScore scores by a decoder's own logits, and "
        f"model_type is {card.model_type!r}; take a decoder, or a ...ForSequenceClassification "
        "checkpoint without a LogitScore module"
    )
