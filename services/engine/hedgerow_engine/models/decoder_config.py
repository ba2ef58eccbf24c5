"""What the config of a decoder-shaped trunk says of attention: directions, windows, scale, biases.

One reading for every executor; no torch here.
"""

from __future__ import annotations

from dataclasses import dataclass

from hedgerow_engine.models.config import Config

_BIDIRECTIONAL = ("bidirectional_pplx_qwen3", "llama_bidirec", "eurobert")
HEAD_NORMS = ("qwen3", "bidirectional_pplx_qwen3", "gemma3_text")


@dataclass(frozen=True, slots=True)
class Biases:
    """Which linears have a bias: query, key and value; the output projection; the MLP."""

    qkv: bool
    o: bool
    mlp: bool


def biases(config: Config) -> Biases:
    """Qwen2 has its own by design; the others by their keys, Mistral none."""
    if config.model_type == "qwen2":
        return Biases(qkv=True, o=False, mlp=False)
    attention = "attention_bias" in config.defaults and config.flag("attention_bias")
    mlp = "mlp_bias" in config.defaults and config.flag("mlp_bias")
    return Biases(attention, attention, mlp)


def is_gemma(config: Config) -> bool:
    return config.model_type == "gemma3_text"


def both_ways(config: Config) -> bool:
    """Older folders say is_causal, newer ones use_bidirectional_attention; null says nothing."""
    known = config.model_type in _BIDIRECTIONAL or not config.flag("is_causal", True)
    if config.values.get("use_bidirectional_attention") is None:
        return known
    return config.flag("use_bidirectional_attention")


def softmax_scale(config: Config, head_dim: int) -> float:
    if not is_gemma(config):
        return head_dim**-0.5
    return config.number("query_pre_attn_scalar") ** -0.5


def reaches(config: Config) -> list[int | None]:
    """For each layer how far a token sees; None = without a window.

    The config counts the token itself when it looks back only, and both sides together when it
    looks both ways.
    """
    windowed = _windowed(config, config.layers())
    if config.values.get("sliding_window") is None and not any(windowed):
        return [None] * len(windowed)
    if any(windowed):
        _check_causal(config)
    window = config.integer("sliding_window")
    reach = window // 2 if both_ways(config) else window - 1
    return [reach if inside else None for inside in windowed]


def _windowed(config: Config, count: int) -> list[bool]:
    """True for each layer with a window, by its family's rule."""
    if is_gemma(config):
        every = config.integer("sliding_window_pattern", "_sliding_window_pattern")
        windowed = config.layer_kinds(count, every, first_full=False)
        if any(windowed) and _says_none(config):
            raise config.wrong(("sliding_window",), "a positive whole number")
        return windowed
    told = None
    if config.get("layer_types") is not None:
        told = config.layer_kinds(count, first_full=False)
    if _qwen_windows(config):
        first = config.integer("max_window_layers", least=0)
        return told or [i >= first for i in range(count)]
    # Mistral has windows everywhere, the others nowhere: layer_types may only agree.
    own = config.model_type == "mistral" and not _says_none(config)
    if told is not None and told != [own] * count:
        wanted = "sliding_attention" if own else "full_attention"
        raise config.wrong(("layer_types",), f"{wanted} only, which is what the other keys say")
    return [own] * count


def _check_causal(config: Config) -> None:
    """Only Gemma's own key says what a window is that looks both ways."""
    gemma = is_gemma(config) and config.values.get("use_bidirectional_attention") is True
    if not gemma and config.values.get("is_causal", True) is not True:
        raise config.wrong(("is_causal",), "true or absent where layers have a sliding window")


def _qwen_windows(config: Config) -> bool:
    if "use_sliding_window" not in config.defaults:
        config.only("use_sliding_window", False)
        return False
    return config.flag("use_sliding_window") and not _says_none(config)


def _says_none(config: Config) -> bool:
    """sliding_window: null, which is not the same as a missing key."""
    return config.values.get("sliding_window", 0) is None
