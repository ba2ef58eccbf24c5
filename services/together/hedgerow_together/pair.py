"""The life of the two: the gateway answers first, the worker joins, and they leave in order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal

from hedgerow_gateway.__main__ import serve as serve_gateway
from hedgerow_gateway.settings import Settings as GatewaySettings
from hedgerow_scheduler.ports import Host
from hedgerow_scheduler.service import Service
from hedgerow_scheduler.settings import Settings as WorkerSettings

_log = logging.getLogger("hedgerow.together")


async def serve(
    gateway_settings: GatewaySettings,
    worker_settings: WorkerSettings,
    host: Host,
    worker_id: str,
) -> int:
    """Serve until a signal, or until one of the two ends; returns the exit code.

    The gateway leaves first, because what it has taken may need the worker. Raises StartupError
    of either.
    """
    told, began = asyncio.Event(), asyncio.Event()
    _watch_signals(told)
    service = Service(worker_settings, host, worker_id)
    gateway = asyncio.create_task(
        serve_gateway(gateway_settings, told, near=service.hand_over, began=began.set)
    )
    beginning = asyncio.create_task(began.wait())
    await asyncio.wait({gateway, beginning}, return_when=asyncio.FIRST_COMPLETED)
    beginning.cancel()
    if gateway.done():
        return gateway.result()
    if told.is_set():
        return await gateway
    worker = asyncio.create_task(service.run())
    await asyncio.wait({gateway, worker}, return_when=asyncio.FIRST_COMPLETED)
    if worker.done():
        _log.info("the worker of this process is gone: its gateway goes, too")
    told.set()
    try:
        left = await gateway
    finally:
        service.stop()
        await asyncio.wait({worker})
    return worker.result() or left


def _watch_signals(told: asyncio.Event) -> None:
    asked = asyncio.Event()  # not `told`: that is set, too, when one half ended by itself

    def signalled(signum: signal.Signals) -> None:
        if asked.is_set():
            os._exit(128 + signum)
        asked.set()
        _log.info("%s: going down; once more ends at once", signum.name)
        told.set()

    for signum in (signal.SIGTERM, signal.SIGINT):
        with contextlib.suppress(NotImplementedError):  # Windows
            asyncio.get_running_loop().add_signal_handler(signum, signalled, signum)
