"""Decoder-shaped trunks: Qwen3, Qwen2, Llama, Mistral, Gemma 3, EuroBERT, pplx-embed.

One shape with switches: RMS norms before attention and MLP, rotary positions, grouped heads, a
gated MLP. An embedder may look both ways; then only the mask differs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from hedgerow_engine.native.embed import EmbedSpec, TableKind
from hedgerow_engine.native.families.config import (
    UnsupportedError,
    activation,
    affine,
    answer_steps,
    answer_tensors,
    fused,
    heads,
    number,
    rope,
    windowed_layers,
)
from hedgerow_engine.native.geometry import Geometry, TailStep
from hedgerow_engine.native.tensors import (
    EVERYWHERE,
    Affine,
    Floats,
    LayerTensors,
    ModelTensors,
    Norm,
)
from hedgerow_engine.weightfile import RawTensor
from hedgerow_engine.weights import Weights
from hedgerow_shared.errors import StartupError
from hedgerow_shared.modelcard import ModelCard

_HEAD_NORMS = ("qwen3", "bidirectional_pplx_qwen3", "gemma3_text")
_BIDIRECTIONAL = ("bidirectional_pplx_qwen3", "llama_bidirec", "eurobert")


def geometry(card: ModelCard, words: str) -> Geometry:
    values = _values(card)
    if values.get("attn_logit_softcapping"):
        raise UnsupportedError("config.json: attn_logit_softcapping")
    if not card.is_scorer and not any(m.kind == "pooling" for m in card.modules):
        raise UnsupportedError("modules.json: no Pooling")
    count, kv, head_dim = heads(card, values)
    gemma = _is_gemma(card)
    return Geometry(
        embed=EmbedSpec(
            width=card.hidden_size,
            words=cast(TableKind, words),
            scale=card.hidden_size**0.5 if gemma else 1.0,
        ),
        hidden=card.hidden_size,
        intermediate=number(values, "intermediate_size"),
        heads=count,
        kv_heads=kv,
        head_dim=head_dim,
        norm="rms",
        eps=float(values.get("rms_norm_eps", 1e-6)),
        norm_first=True,
        embed_norm=False,
        activation=activation(values, "hidden_act", "hidden_activation"),
        gated=True,
        rotary=True,
        qk_norm=card.model_type in _HEAD_NORMS,
        sandwich=gemma,
        windowed=not _both_ways(card) or any(_windowed(card)),
        poolings=("lasttoken",) if card.is_scorer else card.pooling.modes,
        tail=_head_steps(card) if card.is_scorer else answer_steps(card),
        unit=card.normalize and not card.is_scorer,
    )


def tensors(card: ModelCard, weights: Weights, g: Geometry) -> ModelTensors:
    values = _values(card)
    scalar = values.get("query_pre_attn_scalar")
    model = ModelTensors(
        geometry=g,
        num_layers=number(values, "num_hidden_layers"),
        word=weights.take("embed_tokens.weight", (card.vocab_size, g.hidden)),
        table=None,
        embed_norm=None,
        layer=_Layers(card, weights, g).read,
        final_norm=Norm(_norm(card, weights, "norm", g.hidden)),
        scale=None if scalar is None else float(scalar) ** -0.5,
        tail=_head_tensors(card, weights) if card.is_scorer else answer_tensors(card),
    )
    weights.skip("lm_head.*")
    return model


class _Layers:
    """Reads one layer at a time."""

    def __init__(self, card: ModelCard, weights: Weights, g: Geometry) -> None:
        self._card, self._weights, self._g = card, weights, g
        values = _values(card)
        self._windowed = _windowed(card)
        full = rope(values, "full_attention")
        own = "rope_local_base_freq" in values or _speaks_of(values, "sliding_attention")
        local = rope(values, "sliding_attention", key="rope_local_base_freq")
        self._ropes = {False: full, True: local if own else full}

    def read(self, i: int) -> LayerTensors:
        weights, g, at = self._weights, self._g, f"layers.{i}."
        windowed = self._windowed[i]
        back, ahead = _reach(self._card, windowed=windowed)
        sizes = [g.context_width, g.kv_heads * g.head_dim, g.kv_heads * g.head_dim]
        names = [f"{at}self_attn.{part}_proj" for part in "qkv"]
        gate, up = (
            affine(weights, f"{at}mlp.{part}_proj", g.intermediate, g.hidden)
            for part in ("gate", "up")
        )
        mlp_norm = "pre_feedforward_layernorm" if g.sandwich else "post_attention_layernorm"
        return LayerTensors(
            qkv=fused(weights, names, sizes, g.hidden),
            o=affine(weights, f"{at}self_attn.o_proj", g.hidden, g.context_width),
            gate=gate,
            up=up,
            down=affine(weights, f"{at}mlp.down_proj", g.hidden, g.intermediate),
            attention_norm=Norm(self._norm(f"{at}input_layernorm")),
            mlp_norm=Norm(self._norm(at + mlp_norm)),
            after_attention_norm=self._sandwich(f"{at}post_attention_layernorm"),
            after_mlp_norm=self._sandwich(f"{at}post_feedforward_layernorm"),
            q_norm=self._head_norm(f"{at}self_attn.q_norm"),
            k_norm=self._head_norm(f"{at}self_attn.k_norm"),
            rope=self._ropes[windowed],
            back=back,
            ahead=ahead,
        )

    def _norm(self, name: str) -> Floats:
        return _norm(self._card, self._weights, name, self._g.hidden)

    def _sandwich(self, name: str) -> Floats | None:
        return self._norm(name) if self._g.sandwich else None

    def _head_norm(self, name: str) -> Floats | None:
        if not self._g.qk_norm:
            return None
        return _norm(self._card, self._weights, name, self._g.head_dim)


def _values(card: ModelCard) -> Mapping[str, Any]:
    return card.config.get("text_config", card.config)


def _is_gemma(card: ModelCard) -> bool:
    return card.model_type.startswith("gemma3")


def _norm(card: ModelCard, weights: Weights, name: str, width: int) -> Floats:
    """Gemma stores its norm weights less one."""
    weight = weights.take(f"{name}.weight", (width,)).float32()
    return weight + 1 if _is_gemma(card) else weight


def _both_ways(card: ModelCard) -> bool:
    """Older folders say is_causal, newer ones use_bidirectional_attention."""
    values = _values(card)
    known = card.model_type in _BIDIRECTIONAL or values.get("is_causal") is False
    return bool(values.get("use_bidirectional_attention", known))


def _reach(card: ModelCard, *, windowed: bool) -> tuple[int, int]:
    """(back, ahead). A config's window counts the token itself when it looks back only, and
    both sides together when it looks both ways."""
    both = _both_ways(card)
    if not windowed:
        return EVERYWHERE, EVERYWHERE if both else 0
    window = int(_values(card)["sliding_window"])
    return (window // 2, window // 2) if both else (window - 1, 0)


def _windowed(card: ModelCard) -> list[bool]:
    values = _values(card)
    count = number(values, "num_hidden_layers")
    if values.get("sliding_window") is None:
        return [False] * count
    if values.get("layer_types") is not None:
        return windowed_layers(values, count, None, first_full=False)
    if _is_gemma(card):
        every = int(
            values.get("sliding_window_pattern") or values.get("_sliding_window_pattern") or 6
        )
        return windowed_layers(values, count, every, first_full=False)
    if card.model_type == "mistral":
        return [True] * count
    if values.get("use_sliding_window"):
        return [i >= number(values, "max_window_layers") for i in range(count)]
    return [False] * count


def _speaks_of(values: Mapping[str, Any], kind: str) -> bool:
    nested = values.get("rope_parameters")
    return isinstance(nested, dict) and kind in nested


def _head_steps(card: ModelCard) -> tuple[TailStep, ...]:
    return (TailStep("dense", card.hidden_size, max(1, card.num_labels)),)


def _head_tensors(card: ModelCard, weights: Weights) -> tuple[Affine, ...]:
    """Labels of the last token; or how much likelier one token is than another (a reranker
    that answers yes or no): the difference of their rows in the output matrix."""
    module = next((m for m in card.modules if m.kind == "logit_score"), None)
    if module is None:
        return (affine(weights, "score", card.num_labels, card.hidden_size),)
    name = "lm_head.weight" if weights.has("lm_head.weight") else "embed_tokens.weight"
    rows = weights.take(name, (card.vocab_size, card.hidden_size))
    file = module.folder / "config.json"

    def row(key: str) -> Floats:
        token = module.config.get(key)
        if not isinstance(token, int) or not 0 <= token < card.vocab_size:
            raise StartupError(f"{file}: {key} is {token!r}; it must be a token id of this model")
        one = RawTensor(name, rows.dtype, rows.data[token : token + 1], rows.file)
        return one.float32()

    score = row("true_token_id")
    if module.config.get("false_token_id") is not None:
        score = score - row("false_token_id")
    return (Affine(RawTensor(name, "F32", score, rows.file)),)
