"""What is known of a loaded model: what others are told of it, and what intake checks against."""

from __future__ import annotations

from hedgerow_scheduler.canary import Canary, task_of
from hedgerow_scheduler.cost import attention_cost
from hedgerow_scheduler.intake import Served
from hedgerow_scheduler.ports import Engine
from hedgerow_shared import fleet


def describe(engine: Engine, canary: Canary | None = None) -> fleet.FleetModel:
    """The model as this worker announces it."""
    card = engine.card
    return fleet.FleetModel(
        fingerprint=engine.fingerprint,
        gateway_fingerprint=card.gateway_fingerprint(),
        dimension=card.dimension,
        max_seq_len=engine.max_seq_len,
        task=task_of(card),
        dtype=engine.dtype,
        canary=canary.digest if canary else "",
    )


def facts(engine: Engine) -> Served:
    """The model as intake must know it."""
    ours, theirs = engine.fingerprint, engine.card.gateway_fingerprint()
    versions = frozenset((ours, theirs, f"{theirs}:{ours}"))
    return Served(engine, engine.card.dimension, versions, attention_cost(engine.card))
