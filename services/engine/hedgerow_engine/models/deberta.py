"""DeBERTa's positions: never in the input of a layer, only in its scores."""

from __future__ import annotations

from torch import Tensor

from hedgerow_engine.attention.base import ScoreBias
from hedgerow_engine.layers.ops import Ops
from hedgerow_engine.models.bert import Block
from hedgerow_engine.models.config import Config
from hedgerow_engine.models.heads import label_step
from hedgerow_engine.models.relative import DisentangledBias
from hedgerow_engine.weights import Weights


def _position_kinds(config: Config) -> set[str]:
    """DeBERTa's pos_att_type: a list, or one string with bars."""
    kinds = config.values.get("pos_att_type") or []
    kinds = [k.strip() for k in kinds.lower().split("|")] if isinstance(kinds, str) else kinds
    if not isinstance(kinds, list) or any(k not in ("c2p", "p2c", "") for k in kinds):
        raise config.wrong(("pos_att_type",), "c2p, p2c or both, as a list or with a | between")
    return set(kinds)


def score_scale(config: Config, head_dim: int) -> float:
    """Scores are divided for each kind of position that is added to them."""
    kinds = _position_kinds(config)
    return (head_dim * (1 + ("c2p" in kinds) + ("p2c" in kinds))) ** -0.5


def _normed(config: Config) -> bool:
    value = config.get("norm_rel_ebd")
    if value is not None and not isinstance(value, str):
        raise config.wrong(("norm_rel_ebd",), "none or layer_norm")
    return value is not None and "layer_norm" in value.lower()


def disentangled(config: Config, weights: Weights, ops: Ops) -> list[ScoreBias]:
    """What each layer adds to its scores for where two tokens stand."""
    heads, head_dim = config.plain_heads()
    hidden, kinds = config.hidden_size, _position_kinds(config)
    furthest = config.integer("max_relative_positions", least=-1)
    furthest = furthest if furthest > 0 else config.integer("max_position_embeddings")
    buckets = config.integer("position_buckets", least=-1)
    span = buckets if buckets > 0 else furthest
    table = ops.table(weights.take("encoder.rel_embeddings.weight", (2 * span, hidden))).float()
    if _normed(config):
        eps = config.number("layer_norm_eps", zero=True)
        table = ops.norm(Block(weights, ops, "encoder.", eps).norm("LayerNorm", hidden), table)
    shared = config.flag("share_att_key")
    scale = score_scale(config, head_dim)

    def project(prefix: str, name: str) -> Tensor:
        step = label_step(weights, ops, prefix + name, (hidden, hidden))
        rows = step(table).view(-1, heads, head_dim).transpose(0, 1) * scale
        return rows.to(ops.dtype).contiguous()

    biases: list[ScoreBias] = []
    for i in range(config.layers()):
        prefix = f"encoder.layer.{i}.attention.self."
        names = ("key_proj", "query_proj") if shared else ("pos_key_proj", "pos_query_proj")
        keys = project(prefix, names[0]) if "c2p" in kinds else None
        queries = project(prefix, names[1]) if "p2c" in kinds else None
        biases.append(DisentangledBias(keys, queries, span, buckets, furthest))
    return biases
