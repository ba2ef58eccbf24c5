"""The switches that every service has: its models, its way to the bus, its end and its log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

import msgspec

from hedgerow_shared.bus import BusOptions

Count = Annotated[int, msgspec.Meta(ge=1)]
Seconds = Annotated[float, msgspec.Meta(gt=0)]


class ServiceSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Filled by `hedgerow_shared.config.load`: flag > environment > file > default."""

    model: tuple[str, ...] = ()
    max_seq_len: tuple[str, ...] = ()

    nats_url: str = "nats://127.0.0.1:4222"
    nats_user: str = ""
    nats_password: str = ""
    nats_credentials: str = ""
    nats_tls_ca: str = ""
    nats_tls_cert: str = ""
    nats_tls_key: str = ""
    nats_inbox_prefix: str = "_INBOX"
    nats_connect_s: Seconds = 10.0

    drain_s: Seconds = 30.0
    die_with_parent: bool = False
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_json: bool = False

    __help__: ClassVar[Mapping[str, str]] = {
        "model": "ALIAS=WHERE: a folder, an installed package or a hub id; repeatable",
        "max_seq_len": "N or ALIAS=N: longest sequence in tokens; the model's card decides else",
        "nats_url": "where the bus is; several servers with commas",
        "nats_user": "user on the bus",
        "nats_password": "its password; better in HEDGEROW_NATS_PASSWORD",
        "nats_credentials": "a .creds file",
        "nats_tls_ca": "PEM file of the authority that signed the bus's certificate",
        "nats_tls_cert": "PEM file of our certificate",
        "nats_tls_key": "PEM file of its key",
        "nats_inbox_prefix": "where replies to this process go; must begin with _INBOX",
        "nats_connect_s": "how long to look for the bus at start",
        "drain_s": "after SIGTERM: time to finish what was accepted",
        "die_with_parent": "drain when the process that started this one ends",
        "log_level": "debug, info, warning or error",
        "log_json": "log one JSON object per line",
    }

    def connection(self, name: str, use: str) -> BusOptions:
        """How to reach the bus. use: what a connection is for, when it is not the first one."""
        return BusOptions(
            url=self.nats_url,
            name=f"{name}{use and f'-{use}'}",
            user=self.nats_user,
            password=self.nats_password,
            credentials=self.nats_credentials,
            tls_ca=self.nats_tls_ca,
            tls_cert=self.nats_tls_cert,
            tls_key=self.nats_tls_key,
            inbox_prefix=self.nats_inbox_prefix,
            connect_deadline_s=self.nats_connect_s,
        )
