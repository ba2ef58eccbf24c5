"""What the configs of GTE and Nomic say beyond sizes, for every executor. No torch here."""

from __future__ import annotations

from dataclasses import dataclass

from hedgerow_engine.models.config import Config


@dataclass(frozen=True, slots=True)
class Biases:
    """Which linears have a bias: attention's two; the MLP's first ones; its last."""

    attention: bool
    up: bool
    down: bool


def check_rotary_bert(config: Config) -> None:
    """Refuse the variants whose code is not built here, Nomic's mixture of experts among them."""
    if config.model_type != "nomic_bert":
        config.only("logn_attention_scale", False)
        config.only("logn_attention_clip1", False)
        config.only("position_embedding_type", "rope")
        config.only("layer_norm_type", "layer_norm")
        return
    for key in ("num_experts", "prenorm", "use_rms_norm", "causal", "rotary_emb_interleaved"):
        config.only(key, 0, False)
    config.only("rotary_emb_fraction", 1, 1.0)
    config.only("rotary_scaling_factor")
    config.only("activation_function", "swiglu", "silu")
    config.only("hidden_act", "silu", "swish")


def biases(config: Config) -> Biases:
    """GTE has them everywhere but at the MLP's entry; Nomic where its keys say so."""
    if config.model_type != "nomic_bert":
        return Biases(attention=True, up=False, down=True)
    return Biases(
        config.flag("qkv_proj_bias"), config.flag("mlp_fc1_bias"), config.flag("mlp_fc2_bias")
    )
