"""Rotary angles as a config.json spells them: flat keys, `rope_scaling`, `rope_parameters`.

Which spelling wins is transformers' rule. A family of one kind of layer takes `rope_scaling` in
place of `rope_parameters`; a family of two kinds (Gemma 3, ModernBERT) adds it to them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from hedgerow_engine.models.config import Config, NotBuiltError, is_number, refusal

RopeKind = Literal["default", "linear", "llama3"]
_KINDS: Mapping[str, RopeKind] = {"default": "default", "linear": "linear", "llama3": "llama3"}
# Where rope_scaling goes in families of two kinds of layer, and their flat bases by kind.
_SCALED = {
    "gemma3_text": ("full_attention",),
    "modernbert": ("full_attention", "sliding_attention"),
}
_BASES = {
    ("gemma3_text", "sliding_attention"): "rope_local_base_freq",
    ("modernbert", "full_attention"): "global_rope_theta",
    ("modernbert", "sliding_attention"): "local_rope_theta",
}


class Angles(NamedTuple):
    """theta: base of the angles; kind stretches them; low, high, original: llama3's frequency
    band and the length the model was first trained on."""

    theta: float
    kind: RopeKind = "default"
    factor: float = 1.0
    low: float = 1.0
    high: float = 4.0
    original: int = 8192


class _Part:
    """One object of angles; getters name the key by its way from the top of the config."""

    def __init__(self, config: Config, where: str, values: Mapping[str, Any]) -> None:
        self.config, self.where, self.values = config, where, values

    def number(self, key: str, default: float | None = None) -> float:
        value = self.values.get(key)
        value = default if value is None else value
        if not is_number(value) or value <= 0:
            raise self.wrong(key, "a number above 0")
        return float(value)

    def wrong(self, key: str, wanted: str) -> Exception:
        return refusal(self.config.file, f"{self.where}.{key}", self.values.get(key), wanted)


def angles(config: Config, kind: str = "full_attention") -> Angles:
    """The angles of one kind of layer. Raises StartupError for a stretch that is not built."""
    part = _part(config, kind)
    name_key = "rope_type" if part.values.get("rope_type") is not None else "type"
    name = part.values.get(name_key)
    stretch = _KINDS.get(name) if isinstance(name, str) else None
    if name is not None and stretch is None:
        raise NotBuiltError(str(part.wrong(name_key, "default, linear or llama3")))
    theta = part.number("rope_theta", _base(config, kind))
    _check_partial(config, part)
    if stretch is None or stretch == "default":
        return Angles(theta)
    factor = part.number("factor")
    if stretch == "linear":
        return Angles(theta, "linear", factor)
    low, high = part.number("low_freq_factor"), part.number("high_freq_factor")
    if high <= low:
        raise part.wrong("high_freq_factor", f"above low_freq_factor, {low}")
    return Angles(theta, "llama3", factor, low, high, _original(config, part))


def _part(config: Config, kind: str) -> _Part:
    nested = _object(config, "rope_parameters")
    scaling = _object(config, "rope_scaling")
    if config.model_type not in _SCALED:
        if scaling:
            return _Part(config, "rope_scaling", scaling)
        if nested.keys() & {"full_attention", "sliding_attention"}:
            wanted = "one object: this family has one kind of layer"
            raise refusal(config.file, "rope_parameters", dict(nested), wanted)
        return _Part(config, "rope_parameters", nested)
    if nested and not nested.keys() & {"full_attention", "sliding_attention"}:
        wanted = "an object with full_attention and sliding_attention"
        raise refusal(config.file, "rope_parameters", dict(nested), wanted)
    inner = nested.get(kind)
    values = {} if inner is None else _inner(config, kind, inner)
    if scaling and kind in _SCALED[config.model_type]:
        return _Part(config, "rope_scaling", {**values, **scaling})
    return _Part(config, f"rope_parameters.{kind}", values)


def _inner(config: Config, kind: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise refusal(config.file, f"rope_parameters.{kind}", value, "an object")
    return value


def _object(config: Config, key: str) -> Mapping[str, Any]:
    value = config.values.get(key)
    if value is not None and not isinstance(value, dict):
        raise refusal(config.file, key, value, "an object")
    return value or {}


def _base(config: Config, kind: str) -> float:
    """theta by its flat key."""
    if config.model_type == "nomic_bert":
        return config.number("rotary_emb_base", "rope_theta")
    return config.number(_BASES.get((config.model_type, kind), "rope_theta"))


def _check_partial(config: Config, part: _Part) -> None:
    key = "partial_rotary_factor"
    value = part.values.get(key)
    if value is not None:
        if not is_number(value) or value != 1:
            raise part.wrong(key, "1.0")
        return
    value = config.values.get(key)
    if value is not None and (not is_number(value) or value != 1):
        raise refusal(config.file, key, value, "1.0")


def _original(config: Config, part: _Part) -> int:
    """llama3's first length: beside rope_parameters, inside, or the longest there is."""
    key = "original_max_position_embeddings"
    if config.values.get(key) is not None:
        return config.integer(key)
    value = part.values.get(key)
    if value is None:
        return config.integer("max_position_embeddings")
    if type(value) is not int or value < 1:
        raise part.wrong(key, "a positive whole number")
    return value
