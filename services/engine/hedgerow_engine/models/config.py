"""A config.json read key by key, for every executor: each value with its type, its range and the
default its family has. What is wrong is one line: FILE: KEY is VALUE; it must be ...

No torch here: the native executor reads the same keys through the same getters.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeGuard

from hedgerow_engine.models.defaults import DEFAULTS
from hedgerow_shared.errors import StartupError
from hedgerow_shared.modelcard import ModelCard

ActivationName = Literal["gelu", "gelu_tanh", "silu", "relu", "tanh", "sigmoid"]

ACTIVATIONS: Mapping[str, ActivationName] = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
    "relu": "relu",
    "tanh": "tanh",
    "sigmoid": "sigmoid",
}
_MLP_KEYS = ("hidden_act", "hidden_activation", "activation")
_HUGE = 1e38
# Native code counts tokens, rows and layers in 32 bits.
_MOST = (1 << 31) - 1
_MOST_LAYERS = 1000
_KINDS = {"full_attention", "sliding_attention"}


class UnsupportedError(Exception):
    """One executor cannot run this model, another may; the text says why."""


class NotBuiltError(UnsupportedError, StartupError):
    """A well-formed value that none of the executors here has code for."""


class Config:
    """The config of one model's text part. Every getter raises StartupError."""

    def __init__(self, card: ModelCard) -> None:
        self.file = card.trunk / "config.json"
        inner = card.config.get("text_config")
        if inner is not None and not isinstance(inner, dict):
            raise refusal(self.file, "text_config", inner, "an object")
        self.values: Mapping[str, Any] = card.config if inner is None else inner
        self.defaults: Mapping[str, Any] = DEFAULTS.get(card.model_type, {})
        self.model_type = card.model_type
        self.hidden_size = card.hidden_size
        self.vocab_size = card.vocab_size
        self.token_types = card.token_types

    def get(self, *keys: str) -> Any:
        """The value of the first of `keys` that is there and not null, else the default."""
        found = (self.values[key] for key in keys if self.values.get(key) is not None)
        return next(found, next((self.defaults[k] for k in keys if k in self.defaults), None))

    def integer(self, *keys: str, default: int | None = None, least: int = 1) -> int:
        value = self._value(keys, default)
        if type(value) is not int or not least <= value <= _MOST:
            kind = "a positive whole number" if least == 1 else f"a whole number from {least} up"
            raise self.wrong(keys, kind if value is None else f"{kind} below 2**31")
        return value

    def layers(self) -> int:
        keys = ("num_hidden_layers", "n_layers", "n_layer")
        count = self.integer(*keys)
        if count > _MOST_LAYERS:
            raise self.wrong(keys, f"at most {_MOST_LAYERS}")
        return count

    def number(self, *keys: str, default: float | None = None, zero: bool = False) -> float:
        """A finite number above 0; `zero`: or 0."""
        value = self._value(keys, default)
        if not is_number(value) or value < 0 or (value == 0 and not zero):
            raise self.wrong(keys, "a number, 0 or more" if zero else "a number above 0")
        return float(value)

    def flag(self, key: str, default: bool = False) -> bool:
        value = self._value((key,), default)
        if not isinstance(value, bool):
            raise self.wrong((key,), "true or false")
        return value

    def choice(self, key: str, *allowed: str) -> str:
        value = self.get(key)
        if not isinstance(value, str) or value not in allowed:
            raise self.wrong((key,), " or ".join(allowed))
        return value

    def activation(self, *keys: str) -> ActivationName:
        name = self.get(*keys)
        if not isinstance(name, str):
            raise self.wrong(keys, "the name of an activation")
        if name not in ACTIVATIONS:
            wanted = f"an activation this engine has ({', '.join(ACTIVATIONS)})"
            raise NotBuiltError(str(self.wrong(keys, wanted)))
        return ACTIVATIONS[name]

    def mlp_activation(self) -> ActivationName:
        """Under the key that the family calls it by."""
        return self.activation(self._mlp_key())

    def mlp_name(self) -> object:
        """The MLP's activation as the config has it."""
        return self.get(self._mlp_key())

    def heads(self) -> tuple[int, int, int]:
        """(num_heads, num_kv_heads, head_dim) of a decoder."""
        count = self.integer("num_attention_heads")
        kv = self.integer("num_key_value_heads", default=count)
        if count % kv:
            raise self.wrong(("num_key_value_heads",), f"a divisor of {count}, the heads")
        if self.get("head_dim") is None:
            return count, kv, self._share(count)
        dim = self.integer("head_dim")
        if dim % 2:
            raise self.wrong(("head_dim",), "an even number")
        return count, kv, dim

    def plain_heads(self) -> tuple[int, int]:
        """(num_heads, head_dim) of an encoder, whose heads share the hidden size."""
        count = self.integer("num_attention_heads", "n_head", "n_heads")
        dim = self._share(count)
        for key, only in (("head_dim", dim), ("num_key_value_heads", count)):
            self.only(key, only)
        return count, dim

    def layer_kinds(
        self, count: int, full_every: int | None = None, *, first_full: bool
    ) -> list[bool]:
        """True for each layer that attends in a window.

        `layer_types` decides; without it, one layer of `full_every` sees everything (the first
        of each group or the last), and None makes all of them full.
        """
        kinds = self.get("layer_types")
        if kinds is None:
            if full_every is None:
                return [False] * count
            turn = 0 if first_full else full_every - 1
            return [i % full_every != turn for i in range(count)]
        known = isinstance(kinds, list) and all(isinstance(k, str) and k in _KINDS for k in kinds)
        if not known or len(kinds) != count:
            wanted = f"a list of {count} of full_attention or sliding_attention"
            raise self.wrong(("layer_types",), wanted)
        return [kind == "sliding_attention" for kind in kinds]

    def only(self, key: str, *allowed: Any) -> None:
        """Refuse a value that would change the vectors in a way this engine does not know."""
        value = self.values.get(key)
        if value is not None and value not in allowed:
            wanted = " or ".join(map(repr, allowed)) or "absent"
            raise NotBuiltError(str(self.wrong((key,), wanted)))

    def wrong(self, keys: tuple[str, ...], wanted: str) -> StartupError:
        key = next((k for k in keys if self.values.get(k) is not None), keys[0])
        return refusal(self.file, key, self.values.get(key), wanted)

    def _value(self, keys: tuple[str, ...], default: Any) -> Any:
        value = self.get(*keys)
        return default if value is None else value

    def _mlp_key(self) -> str:
        return next(key for key in _MLP_KEYS if key in self.defaults)

    def _share(self, count: int) -> int:
        if self.hidden_size % count:
            keys = ("num_attention_heads", "n_head", "n_heads")
            raise self.wrong(keys, f"a divisor of the hidden size, {self.hidden_size}")
        return self.hidden_size // count


def is_number(value: Any) -> TypeGuard[float]:
    """A finite one; not true or false, which Python counts as numbers."""
    return type(value) in (int, float) and -_HUGE < value < _HUGE


def refusal(file: object, key: str, value: object, wanted: str) -> StartupError:
    return StartupError(f"{file}: {key} is {value!r}; it must be {wanted}")
