"""Which worker serves which model: what workers announce and gateways keep.

The same facts travel two ways: as a message on `subjects.FLEET` when a worker joins or leaves,
and as metadata of $SRV.INFO for a gateway that starts later.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from hedgerow_shared.errors import BadChunkError

VERSION = 1


class FleetModel(msgspec.Struct, frozen=True, kw_only=True):
    """One model of one worker.

    fingerprint: of the engine's half (weights, pooling, dtype, numerics)
    gateway_fingerprint: of the gateway's half (tokenizer, prompts, lengths)
    dimension: numbers of an embedding; 0 for a pure scorer
    canary: digest of what the worker made of known inputs; "" from one that has none
    """

    fingerprint: str
    gateway_fingerprint: str
    dimension: int
    max_seq_len: int
    task: Literal["embed", "score", "classify"]
    dtype: str
    canary: str = ""


class FleetEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A worker came (and is ready) or went (and has answered everything it had)."""

    v: int = VERSION
    event: Literal["joined", "left"]
    worker: str
    models: dict[str, FleetModel]


def encode_event(event: FleetEvent) -> bytes:
    return msgspec.msgpack.encode(event)


def decode_event(data: bytes) -> FleetEvent:
    """Raises BadChunkError for anything that is not one."""
    try:
        event = msgspec.msgpack.decode(data, type=FleetEvent)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadChunkError(f"not a fleet event: {error}") from None
    if event.v != VERSION:
        raise BadChunkError(f"fleet event of version {event.v}; this side speaks {VERSION}")
    return event


def metadata(worker: str, models: Mapping[str, FleetModel]) -> dict[str, str]:
    """A worker's metadata for $SRV.INFO."""
    return {
        "role": "worker",
        "worker": worker,
        "models": msgspec.json.encode(dict(models)).decode(),
    }


def parse_metadata(found: Mapping[str, str]) -> FleetEvent | None:
    """What a worker's metadata says, as the event it would have sent; None for other services."""
    if found.get("role") != "worker" or not found.get("worker"):
        return None
    try:
        models = msgspec.json.decode(found.get("models", "{}"), type=dict[str, FleetModel])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return FleetEvent(event="joined", worker=found["worker"], models=models)
