"""Who may connect to the embedded nats-server, as text for its configuration file.

infra/nats/accounts.conf holds the same rules for production, where clients have a password and an
inbox prefix too; a test compares the two.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Role = Literal["gateway", "worker"]

PUBLIC = "public"
"""Whoever gives no credentials: may ask, may read answers, may do nothing else."""

_VERBS = ("INFO", "CREATE", "PURGE")
_STREAMS = ("HEDGEROW_BULK", "HEDGEROW_RESULT", "HEDGEROW_DEAD", "KV_HEDGEROW_JOBS")

# They live longer than the longest request, which is --max-ttl-s of a gateway. The server counts by
# reply subject, not by message: a gateway's own inbox subjects are used once, but some clients name
# one inbox for all they ask.
_TO_GATEWAYS = {"max": 1, "expires": "15m"}
_TO_CLIENTS = {"max": 1000000, "expires": "15m"}

PERMISSIONS: Mapping[str, Mapping[str, Any]] = {
    PUBLIC: {
        "publish": {"allow": ["hedgerow.v1.>", "$SRV.>"]},
        "subscribe": {"allow": ["_INBOX.>"]},
    },
    "gateway": {
        "publish": {
            "allow": [
                "hedgerow.chunk.*",
                "hedgerow.worker.>",
                "hedgerow.bulk.*.*",
                "hedgerow.result.*.*.*",
                "$SRV.>",
                "$KV.HEDGEROW_JOBS.>",
                *(f"$JS.API.STREAM.{verb}.{s}" for verb in _VERBS for s in _STREAMS),
                "$JS.API.STREAM.MSG.GET.HEDGEROW_BULK",
                "$JS.API.STREAM.MSG.GET.KV_HEDGEROW_JOBS",
                "$JS.API.DIRECT.GET.KV_HEDGEROW_JOBS.>",
                "$JS.API.DIRECT.GET.HEDGEROW_RESULT",
                "$JS.API.DIRECT.GET.HEDGEROW_RESULT.>",
                "$JS.API.CONSUMER.CREATE.HEDGEROW_BULK.>",
                "$JS.API.CONSUMER.INFO.HEDGEROW_BULK.*",
                "$JS.API.CONSUMER.CREATE.HEDGEROW_RESULT.>",
                "$JS.API.CONSUMER.MSG.NEXT.HEDGEROW_RESULT.*",
                "$JS.API.CONSUMER.DELETE.HEDGEROW_RESULT.*",
            ]
        },
        "subscribe": {
            "allow": ["hedgerow.v1.> gateways", "hedgerow.fleet", "$SRV.>", "_INBOX_gateway.>"]
        },
        "allow_responses": _TO_CLIENTS,
    },
    "worker": {
        "publish": {
            "allow": [
                "hedgerow.fleet",
                "hedgerow.canary.*",
                "hedgerow.result.*.*.*",
                "hedgerow.dead.*.*.*",
                "$KV.HEDGEROW_JOBS.attempt.>",
                "$JS.API.DIRECT.GET.KV_HEDGEROW_JOBS.$KV.HEDGEROW_JOBS.attempt.>",
                "$JS.API.CONSUMER.MSG.NEXT.HEDGEROW_BULK.*",
                "$JS.ACK.HEDGEROW_BULK.>",
                "$JS.ACK.*.*.HEDGEROW_BULK.>",
            ]
        },
        "subscribe": {
            "allow": [
                "hedgerow.chunk.* workers",
                "hedgerow.worker.>",
                "hedgerow.canary.*",
                "$SRV.>",
                "_INBOX_worker.>",
            ]
        },
        "allow_responses": _TO_GATEWAYS,
    },
}


@dataclass(frozen=True, slots=True)
class NatsUser:
    """One name on the bus. `permissions` as in the server's file; None = everything."""

    name: str
    password: str
    permissions: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Login:
    """What a service of ours needs to come in, as its environment and as its settings file."""

    role: Role
    password: str

    @property
    def settings(self) -> dict[str, str]:
        return {
            "nats_user": self.role,
            "nats_password": self.password,
            "nats_inbox_prefix": f"_INBOX_{self.role}",
        }

    @property
    def env(self) -> dict[str, str]:
        return {f"HEDGEROW_{name.upper()}": value for name, value in self.settings.items()}

    def toml(self, nats_url: str) -> str:
        """For `--config FILE` of a service that is started by hand."""
        values = {"nats_url": nats_url, **self.settings}
        return "".join(f"{name} = {json.dumps(value)}\n" for name, value in values.items())


def new_login(role: Role) -> Login:
    """A password for one run."""
    return Login(role, secrets.token_urlsafe(24))


def guarded(logins: Sequence[Login]) -> str:
    """Server configuration: our roles by password, everybody else as PUBLIC."""
    users = [NatsUser(login.role, login.password, PERMISSIONS[login.role]) for login in logins]
    # Nobody logs in as PUBLIC: the server takes connections without a login to be it.
    users.append(NatsUser(PUBLIC, secrets.token_urlsafe(24), PERMISSIONS[PUBLIC]))
    return users_text(users) + f"no_auth_user: {PUBLIC}\n"


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
