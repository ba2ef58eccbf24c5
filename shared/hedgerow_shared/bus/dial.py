"""The first connect with its deadline, and how fast to try again later."""

from __future__ import annotations

import asyncio
import os
import random
import re
import socket
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from hedgerow_shared.bus.nats_client import NatsClient
from hedgerow_shared.bus.options import BusOptions, without_password
from hedgerow_shared.errors import StartupError

PING_S = 5
"""With 2 unanswered pings allowed, a dead link is noticed within 15 s (nats-py: 6 minutes)."""

PENDING_BYTES = 64 * 1024 * 1024
"""Kept while disconnected; beyond it `publish` is refused, and while connected it waits."""

_MAX_DELAY_S = 1.0

_REFUSAL = re.compile(r"permissions violation for (publish|subscription) to \"([^\"]+)\"", re.I)
_ACTIONS = {"publish": "publish to", "subscription": "subscribe to"}


def next_server(pool: list[Any], _info: dict[str, Any]) -> tuple[Any, float]:
    """Choose the server tried least, and wait a random time that grows with the tries.

    The jitter keeps a fleet from coming back in one instant; the cap of one second keeps the
    fleet within two seconds of a server that is back.
    """
    server = min(pool, key=lambda s: (s.reconnects, random.random()))
    ceiling_s = min(_MAX_DELAY_S, 0.05 * 2 ** min(server.reconnects, 10))
    return server, random.uniform(0.2 * ceiling_s, ceiling_s)


def parse_refusal(text: str) -> tuple[str, str] | None:
    """(action, subject) of a permissions violation, or None for any other error."""
    found = _REFUSAL.search(text)
    return (_ACTIONS[found[1].lower()], found[2]) if found else None


@dataclass(frozen=True, slots=True)
class Events:
    """What nats-py calls, and awaits; none of them may raise."""

    error: Callable[[Exception], Awaitable[None]]
    down: Callable[[], Awaitable[None]]
    up: Callable[[], Awaitable[None]]
    end: Callable[[], Awaitable[None]]


async def connect(nc: NatsClient, options: BusOptions, events: Events) -> None:
    """Connect, or raise StartupError with the last reason once the deadline has passed.

    A refused login or a bad certificate ends it at once: trying again would not help.
    """
    where = ", ".join(without_password(server) for server in options.servers)
    if not where:
        raise StartupError("bus: no URL; give --nats-url nats://HOST:4222")
    loop = asyncio.get_running_loop()
    hopeless: asyncio.Future[None] = loop.create_future()
    reasons: list[Exception] = []

    async def note(error: Exception) -> None:
        if attempt.done():
            await events.error(error)
            return
        reasons.append(error)
        if _is_hopeless(error) and not hopeless.done():
            hopeless.set_result(None)

    callbacks: dict[str, Any] = {
        "error_cb": note,
        "disconnected_cb": events.down,
        "reconnected_cb": events.up,
        "closed_cb": events.end,
    }
    login = _login(options)
    attempt = loop.create_task(nc.connect(options.servers, **callbacks, **_BEHAVIOUR, **login))
    try:
        await asyncio.wait(
            {attempt, hopeless},
            timeout=options.connect_deadline_s,
            return_when=asyncio.FIRST_COMPLETED,
        )
        if nc.is_connected and attempt.done() and attempt.exception() is None:
            return
    except BaseException:
        attempt.cancel()
        raise
    attempt.cancel()
    results = await asyncio.gather(attempt, return_exceptions=True)
    nc.hang_up()
    reason = next((r for r in (*results, *reversed(reasons)) if isinstance(r, Exception)), None)
    raise StartupError(_explain(where, options, reason))


_BEHAVIOUR: dict[str, Any] = {
    "connect_timeout": 2,
    "reconnect_time_wait": 0.1,
    "max_reconnect_attempts": -1,
    "reconnect_to_server_handler": next_server,
    "ping_interval": PING_S,
    "max_outstanding_pings": 2,
    "pending_size": PENDING_BYTES,
}


def _login(options: BusOptions) -> dict[str, Any]:
    return {
        "name": options.name,
        "user": options.user or None,
        "password": options.password or None,
        "user_credentials": options.credentials or None,
        "tls": options.ssl_context(),
        "inbox_prefix": options.inbox_prefix,
    }


def _is_hopeless(error: Exception) -> bool:
    refused = isinstance(error, ssl.SSLCertVerificationError)
    return refused or "authorization violation" in str(error).lower()


def _explain(where: str, options: BusOptions, reason: Exception | None) -> str:
    text = " ".join(str(reason).split()) if reason else ""
    if isinstance(reason, ModuleNotFoundError):
        return "bus: a .creds file needs one more package: pip install nkeys"
    if "authorization violation" in text.lower():
        who = f"user {options.user!r}" if options.user else "a client without a user"
        return (
            f"bus: {where} does not let {who} in; set HEDGEROW_NATS_USER and HEDGEROW_NATS_PASSWORD"
        )
    if isinstance(reason, socket.gaierror):  # its errno is not one that os.strerror knows
        why = f"the host cannot be resolved: {reason.strerror}"
    elif isinstance(reason, OSError) and reason.errno and not isinstance(reason, ssl.SSLError):
        why = os.strerror(reason.errno)
    elif text:
        why = text.removeprefix("nats: ")
    else:
        why = type(reason).__name__ if reason else "no answer"
    return (
        f"bus: cannot connect to {where} within {options.connect_deadline_s:g} s ({why}); "
        "start a server there (nats-server) or give its address with --nats-url"
    )
