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
    return BusOptions(
        url=url,
        name=name,
        user=os.environ.get("HEDGEROW_NATS_USER", ""),
        password=os.environ.get("HEDGEROW_NATS_PASSWORD", ""),
        connect_deadline_s=3.0,
    )
