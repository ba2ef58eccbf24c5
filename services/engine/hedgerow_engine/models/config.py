"""A config.json read key by key; what is missing or unknown is an error that names the key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hedgerow_engine.layers.ops import Activation, activation_of
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
        heads = self.integer("num_attention_heads", "n_head")
        kv = self.integer("num_key_value_heads", default=heads)
        head_dim = self.integer("head_dim", default=self.hidden_size // heads)
        if heads % kv or ("head_dim" not in self.values and self.hidden_size % heads):
            raise self.wrong("num_attention_heads", "a divisor of hidden_size and a multiple of kv")
        return heads, kv, head_dim

    def only(self, key: str, *allowed: Any) -> None:
        """Refuse a value that would change the vectors in a way this engine does not know."""
        value = self.values.get(key)
        if value is not None and value not in allowed:
            raise self.wrong(key, " or ".join(map(repr, allowed)))

    def wrong(self, key: str, wanted: str) -> StartupError:
        return StartupError(f"{self.file}: {key} is {self.values.get(key)!r}; it must be {wanted}")
