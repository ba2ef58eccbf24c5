"""Notices what nats-py does not: a reader or a reconnect that ended in silence."""

from __future__ import annotations

import asyncio
import logging

from hedgerow_shared.bus.nats_client import NatsClient

WATCH_S = 0.5

_log = logging.getLogger("hedgerow.bus")


async def watch(nc: NatsClient) -> None:
    """Run until cancelled. A deaf connection reconnects; one that no longer tries is closed,
    which ends the process through `on_closed` (its supervisor starts it again)."""
    while True:
        await asyncio.sleep(WATCH_S)
        if nc.is_deaf:
            _log.error("bus: nobody reads the connection any more; reconnecting")
            await nc.force_reconnect()
        elif nc.is_stuck:
            _log.error("bus: reconnecting ended without a result; closing")
            await nc.close()
