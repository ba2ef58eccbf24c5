"""A config.json read key by key; what is missing or unknown is an error that names the key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hedgerow_engine.layers.ops import Activation, activation_of
from hedgerow_engine.layers.rotary import RopeParams
from hedgerow_shared.errors import StartupError
from hedgerow_shared.modelcard import ModelCard


class Config:
    """The config of one model's text part. Every getter raises StartupError."""

    def __init__(self, card: ModelCard) -> None:
        self.file = card.folder / "config.json"
        values: Mapping[str, Any] = card.config
        self.values: Mapping[str, Any] = values.get("text_config", values)
        self.hidden_size = card.hidden_size
        self.vocab_size = card.vocab_size

    def integer(self, *keys: str, default: int | None = None) -> int:
        """A whole number above 0 under the first of `keys` that is there."""
        for key in keys:
            value = self.values.get(key)
            if value is not None:
                if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
                    raise self.wrong(key, "a positive whole number")
                return value
        if default is None:
            raise self.wrong(keys[0], "a positive whole number")
        return default

    def number(self, *keys: str, default: float | None = None) -> float:
        for key in keys:
            value = self.values.get(key)
            if value is not None:
                if isinstance(value, bool) or not isinstance(value, (int, float)):
                    raise self.wrong(key, "a number")
                return float(value)
        if default is None:
            raise self.wrong(keys[0], "a number")
        return default

    def flag(self, key: str, default: bool) -> bool:
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false")
        return value

    def activation(self, *keys: str) -> Activation:
        key = next((k for k in keys if k in self.values), "hidden_act")
        found = activation_of(self.values.get(key, "gelu"))
        if found is None:
            raise self.wrong(key, "an activation this engine has")
        return found

    def heads(self) -> tuple[int, int, int]:
        """(num_heads, num_kv_heads, head_dim)."""
        heads = self.integer("num_attention_heads", "n_head", "n_heads")
        kv = self.integer("num_key_value_heads", default=heads)
        head_dim = self.integer("head_dim", default=self.hidden_size // heads)
        if heads % kv or ("head_dim" not in self.values and self.hidden_size % heads):
            raise self.wrong("num_attention_heads", "a divisor of hidden_size and a multiple of kv")
        return heads, kv, head_dim

    def layer_kinds(
        self, count: int, full_every: int | None = None, *, first_full: bool
    ) -> list[bool]:
        """True for each layer that attends in a window.

        `layer_types` decides; without it, one layer of `full_every` sees everything (the first
        of each group or the last), and None makes all of them full.
        """
        kinds = self.values.get("layer_types")
        if kinds is None:
            if full_every is None:
                return [False] * count
            turn = 0 if first_full else full_every - 1
            return [i % full_every != turn for i in range(count)]
        if len(kinds) != count or set(kinds) - {"full_attention", "sliding_attention"}:
            raise self.wrong("layer_types", f"{count} of full_attention or sliding_attention")
        return [kind == "sliding_attention" for kind in kinds]

    def has_rope(self, kind: str) -> bool:
        """True when rope_parameters speaks of this kind of layer."""
        nested = self.values.get("rope_parameters")
        return isinstance(nested, dict) and kind in nested

    def rope(
        self, kind: str = "full_attention", *, key: str = "rope_theta", default: float = 10000.0
    ) -> RopeParams:
        """The angles of one kind of layer, in either spelling: flat keys, or rope_parameters."""
        nested = self.values.get("rope_parameters") or {}
        nested = nested.get(kind, nested) if isinstance(nested, dict) else {}
        scaling = nested if "rope_type" in nested else (self.values.get("rope_scaling") or {})
        theta = float(nested.get("rope_theta") or self.values.get(key) or default)
        name = str(scaling.get("rope_type") or scaling.get("type") or "default")
        if name not in ("default", "linear", "llama3"):
            raise self.wrong("rope_scaling", "default, linear or llama3")
        partial = nested.get("partial_rotary_factor", self.values.get("partial_rotary_factor", 1.0))
        if float(partial) != 1.0:
            raise self.wrong("partial_rotary_factor", "1.0")
        return RopeParams(
            theta,
            name,
            float(scaling.get("factor") or 1.0),
            float(scaling.get("low_freq_factor") or 1.0),
            float(scaling.get("high_freq_factor") or 4.0),
            int(scaling.get("original_max_position_embeddings") or 8192),
        )

    def only(self, key: str, *allowed: Any) -> None:
        """Refuse a value that would change the vectors in a way this engine does not know."""
        value = self.values.get(key)
        if value is not None and value not in allowed:
            raise self.wrong(key, " or ".join(map(repr, allowed)) or "absent")

    def wrong(self, key: str, wanted: str) -> StartupError:
        return StartupError(f"{self.file}: {key} is {self.values.get(key)!r}; it must be {wanted}")
