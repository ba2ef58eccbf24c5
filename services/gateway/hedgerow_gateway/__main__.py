"""`python -m hedgerow_gateway`: settings, signals, exit codes.

Exit codes: 0 after a drain, 2 when it could not start (one line says why), 70 when the bus
closed for good and a supervisor should start it again.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import secrets
import signal
import sys
from collections.abc import Callable

from hedgerow_gateway.app import Gateway, describe
from hedgerow_gateway.models import open_models
from hedgerow_gateway.near import Near
from hedgerow_gateway.settings import Settings
from hedgerow_shared import __version__
from hedgerow_shared.bus import Bus
from hedgerow_shared.config import load
from hedgerow_shared.errors import StartupError
from hedgerow_shared.orphan import die_with_parent
from hedgerow_shared.telemetry import setup_logging

PROG = "hedgerow-gateway"
EXIT_STARTUP, EXIT_BUS = 2, 70

# A pool thread that holds the GIL gives it back to the loop after this long (default 5 ms).
_SWITCH_S = 0.0005

_log = logging.getLogger("hedgerow.gateway")


def main() -> int:
    """Run until told to stop; returns the exit code."""
    # The pool slices large texts over its own threads; a second pool inside would fight it.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        settings = load(Settings, sys.argv[1:], os.environ, prog=PROG)
        if settings.die_with_parent:
            die_with_parent()
        setup_logging(PROG, settings.log_level, settings.log_json)
        return _run(settings)
    except StartupError as error:
        text = str(error)
        sys.stderr.write(text if text.startswith(PROG) else f"{PROG}: {text}")
        sys.stderr.write("\n")
        return EXIT_STARTUP
    except KeyboardInterrupt:
        return 130


def _run(settings: Settings) -> int:
    if sys.platform == "win32":
        return asyncio.run(_until_told(settings))
    import uvloop

    return uvloop.run(_until_told(settings))


async def _until_told(settings: Settings) -> int:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()

    def told() -> None:
        if stop.is_set():
            os._exit(128 + signal.SIGTERM)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told)
    return await serve(settings, stop)


async def serve(
    settings: Settings,
    stop: asyncio.Event,
    *,
    near: Near | None = None,
    began: Callable[[], None] = lambda: None,
) -> int:
    """Serve until `stop` is set; returns the exit code. Raises StartupError before that.

    near: the worker of this process, if it has one
    began: called once requests are answered
    """
    loop, closed = asyncio.get_running_loop(), asyncio.Event()
    gateway_id = settings.gateway_id or secrets.token_hex(4)
    _log.debug("settings: %s", describe(settings))
    models = open_models(settings.model, settings.max_seq_len, log=_log.info)
    buses = [await Bus.connect(settings.bus_options(gateway_id), on_closed=closed.set)]
    bus, bulk_bus = buses[0], None
    try:
        if settings.bulk == "on":
            options = settings.bus_options(gateway_id, "bulk")
            bulk_bus = await Bus.connect(options, on_closed=closed.set)
            buses.append(bulk_bus)
        gateway = await Gateway.start(settings, models, bus, gateway_id, bulk_bus, near)
    except BaseException:
        await _close(buses)
        raise
    _log.info(
        "gateway %s %s listens on http://%s:%d and on %s",
        gateway_id, __version__, settings.host, gateway.port, bus.url,
    )  # fmt: skip
    sys.setswitchinterval(_SWITCH_S)
    # What was built at start stays; the collector need not walk a vocabulary again and again.
    gc.collect()
    gc.freeze()
    began()
    waits = [loop.create_task(event.wait()) for event in (stop, closed)]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for task in waits:
        task.cancel()
    if not closed.is_set():
        _log.info("gateway %s drains", gateway_id)
    await gateway.drain()
    await _close(buses)
    _log.info("gateway %s stopped", gateway_id)
    return EXIT_BUS if closed.is_set() else 0


async def _close(buses: list[Bus]) -> None:
    for bus in buses:
        await bus.close()


if __name__ == "__main__":
    sys.exit(main())
