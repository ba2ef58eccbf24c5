"""Which bus a command talks to when it was not told: the one that runs on this machine."""

from __future__ import annotations

import os
from pathlib import Path

from hedgerow_local.options import DEFAULT_DATA_DIR, DEFAULT_NATS_PORT
from hedgerow_local.state import running_in
from hedgerow_shared.bus import BusOptions


def bus_options(nats_url: str, name: str, *, data_dir: Path = DEFAULT_DATA_DIR) -> BusOptions:
    """`--nats-url`, else the `hedgerow up` of this folder, else the default port of NATS."""
    running = running_in(data_dir)
    url = nats_url or (running.nats_url if running else f"nats://127.0.0.1:{DEFAULT_NATS_PORT}")
    if running and url == running.nats_url:
        # Our own server lets everybody in as the public role; variables are for another one.
        return BusOptions(url=url, name=name, connect_deadline_s=3.0)
    settings = {
        field: os.environ.get(f"HEDGEROW_NATS_{field.upper()}", "")
        for field in ("user", "password", "credentials", "tls_ca", "tls_cert", "tls_key")
    }
    prefix = os.environ.get("HEDGEROW_NATS_INBOX_PREFIX", "_INBOX")
    return BusOptions(url=url, name=name, inbox_prefix=prefix, connect_deadline_s=3.0, **settings)
