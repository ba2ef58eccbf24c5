"""What `hedgerow up` prints when it serves: addresses, two commands to paste, what was chosen."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from hedgerow_local import plan
from hedgerow_local.machine import Machine
from hedgerow_local.options import DEFAULT_NATS_PORT, ServedModel, UpOptions
from hedgerow_shared import __version__, subjects

_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}


def reachable(host: str) -> str:
    """An address of this machine that a client can dial when the server listens on `host`."""
    return _EVERYWHERE.get(host, host)


def text(
    options: UpOptions,
    machine: Machine,
    models: Sequence[ServedModel],
    *,
    http_url: str,
    nats_url: str,
    why_port: str,
    engines: Sequence[str],
    took_s: float,
) -> str:
    """Several lines; the first holds `ready` and both addresses."""
    first = models[0]
    embed = {"model": first.alias, "input": "hello"}
    curl = (
        f"curl -s {http_url}/v1/embeddings -H 'Content-Type: application/json' -d {_quoted(embed)}"
    )
    request = f"{command()} req {subjects.embed(first.alias)} {_quoted({'input': 'hello'})}"
    if nats_url != f"nats://127.0.0.1:{DEFAULT_NATS_PORT}":
        request += f" --nats-url {nats_url}"
    workers, threads = plan.choose_workers(options, machine), plan.choose_threads(options)
    lines = [
        f"hedgerow {__version__} ready in {took_s:.1f} s: {http_url} and {nats_url}",
        f"  http     {curl}",
        f"  nats     {request}",
        *(f"  model    {_model_line(model)}" for model in models),
        f"  workers  {workers.value} ({workers.why})",
        *(["  gateway  one in each worker (--together)"] if options.together else []),
        f"  threads  {threads.value} per worker ({threads.why})",
        f"  device   {plan.device_note(options, machine)}",
        *(f"  engine   {engine}" for engine in engines),
    ]
    if why_port:
        lines.append(f"  bus      {nats_url} because {why_port}")
    if not options.nats_url:
        lines.append(f"  data     {options.data_dir} (what the bus stores)")
    if options.host in _EVERYWHERE:
        lines.append("  warning  every machine that reaches this one may send requests: no login")
    lines.append(f"  watch    {command()} top        stop    Ctrl-C (drains)")
    return "\n".join(lines) + "\n"


def command() -> str:
    """How this person can call `hedgerow` again from this folder."""
    called = Path(sys.argv[0]).resolve()
    found = shutil.which("hedgerow")
    if called.name != "hedgerow" or (found and Path(found).resolve() == called):
        return "hedgerow"
    relative = os.path.relpath(called)
    return str(called) if relative.startswith("..") else relative


def _model_line(model: ServedModel) -> str:
    card = model.card
    what = (
        f"{card.dimension} dimensions" if card.dimension else f"scores, {card.num_labels} label(s)"
    )
    return f"{model.alias} ({what}, up to {card.max_seq_len} tokens) from {card.folder}"


def _quoted(body: dict[str, str]) -> str:
    """JSON in single quotes, as a shell takes it."""
    return "'" + json.dumps(body).replace("'", "'\\''") + "'"
