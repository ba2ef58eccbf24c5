"""Who may connect to the embedded nats-server, as text for its configuration file.

infra/nats/hedgerow.conf is the file for production, where every role has its own permissions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class NatsUser:
    """One name on the bus. `permissions` as in the server's file; None = everything."""

    name: str
    password: str
    permissions: Mapping[str, Any] | None = None


def users_text(users: Sequence[NatsUser]) -> str:
    """The `authorization` block; "" without users, and then anybody here may connect."""
    if not users:
        return ""
    # JSON is a subset of what nats-server reads, and it quotes every password rightly.
    return f"authorization: {json.dumps({'users': [_entry(user) for user in users]}, indent=2)}\n"


def _entry(user: NatsUser) -> dict[str, Any]:
    entry: dict[str, Any] = {"user": user.name, "password": user.password}
    if user.permissions is not None:
        entry["permissions"] = dict(user.permissions)
    return entry
