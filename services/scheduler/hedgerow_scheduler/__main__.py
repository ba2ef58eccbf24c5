"""The worker process, put together. The only file of this room that names the engine.

`python -m hedgerow_scheduler --model ALIAS=WHERE [...]`
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

from hedgerow_scheduler.fake_engine import FakeHost, FakeSettings
from hedgerow_scheduler.ports import Host
from hedgerow_scheduler.service import Service
from hedgerow_scheduler.settings import Settings
from hedgerow_shared.config import load
from hedgerow_shared.errors import StartupError
from hedgerow_shared.modelcard import read_card
from hedgerow_shared.modelstore import locate, parse_max_seq_len, parse_model_flag
from hedgerow_shared.orphan import die_with_parent
from hedgerow_shared.subjects import check_aliases
from hedgerow_shared.telemetry import setup_logging

PROG = "hedgerow-worker"
_log = logging.getLogger("hedgerow.worker")


def main() -> None:
    """Run a worker; ends the process with its exit code."""
    parent = os.getppid()
    try:
        settings = load(Settings, sys.argv[1:], os.environ, prog=PROG)
        setup_logging(PROG, settings.log_level, settings.log_json)
        if settings.die_with_parent:
            die_with_parent(parent)
        host = open_host(settings)
        code = _run(settings, host)
    except StartupError as error:
        sys.stderr.write(f"{PROG}: {str(error).removeprefix(f'{PROG}: ')}\n")
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    logging.shutdown()
    if code:
        # A hung engine's thread would keep an orderly exit waiting for ever.
        os._exit(code)
    host.close()


def open_host(settings: Settings) -> Host:
    """Find the models and load them on the device. Raises StartupError (one line)."""
    sources = [parse_model_flag(flag) for flag in settings.model]
    if not sources:
        raise StartupError("no model: give --model ALIAS=PATH_OR_HUB_ID at least once")
    aliases = [source.alias for source in sources]
    check_aliases(aliases)
    limits = parse_max_seq_len(settings.max_seq_len, aliases)
    folders = {source.alias: locate(source) for source in sources}
    if settings.device == "fake":
        return _open_fake(settings, folders, limits)
    return _open_engines(settings, folders, limits)


def _open_engines(
    settings: Settings, folders: Mapping[str, Path], limits: Mapping[str, int]
) -> Host:
    try:
        from hedgerow_engine.load import EngineSettings, ModelSpec, load_engines
    except ImportError as error:
        raise StartupError(
            f"the engine is not installed ({error}): pip install 'hedgerow[cpu]'"
        ) from None
    engine_settings = EngineSettings(
        device=settings.device,
        dtype=settings.dtype,
        threads=settings.threads,
        cpu_executor=settings.cpu_executor,
        graph_cache=settings.graph_cache,
        graph_max_tokens=settings.graph_max_tokens,
        graph_reserve_mb=settings.graph_reserve_mb,
        graph_inflection=None if settings.graph_inflection < 0 else settings.graph_inflection,
        depth=settings.depth,
        attention=settings.attention,
        priorities=settings.priorities == "on",
        fp8=settings.fp8 == "on",
    )
    specs = [
        ModelSpec(alias=alias, folder=folder, max_seq_len=limits.get(alias))
        for alias, folder in folders.items()
    ]
    return load_engines(specs, engine_settings, log=_log.info)


def _open_fake(settings: Settings, folders: Mapping[str, Path], limits: Mapping[str, int]) -> Host:
    cards = {
        alias: read_card(folder, max_seq_len=limits.get(alias)) for alias, folder in folders.items()
    }
    fake = FakeSettings(
        ms_per_4096=settings.fake_ms,
        floor_ms=settings.fake_floor_ms,
        raise_id=settings.fake_raise_id,
        kill_id=settings.fake_kill_id,
        hang_id=settings.fake_hang_id,
        version=settings.fake_version,
        skew=settings.fake_skew,
    )
    return FakeHost(cards, fake)


def _run(settings: Settings, host: Host) -> int:
    worker_id = settings.worker_id or secrets.token_hex(4)

    async def serve() -> int:
        service = Service(settings, host, worker_id)

        def told(signum: signal.Signals) -> None:
            if service.stopping:
                os._exit(128 + signum)
            _log.info("%s: going down; once more ends at once", signum.name)
            service.stop()

        for signum in (signal.SIGTERM, signal.SIGINT):
            with contextlib.suppress(NotImplementedError):  # Windows
                asyncio.get_running_loop().add_signal_handler(signum, told, signum)
        return await service.run()

    if sys.platform == "win32":
        return asyncio.run(serve())
    import uvloop

    return uvloop.run(serve())


if __name__ == "__main__":
    main()
