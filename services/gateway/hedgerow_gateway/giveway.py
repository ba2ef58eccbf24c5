"""Long work gives its core away now and then.

A kernel that ticks 250 times a second leaves a busy thread on its core for up to four
milliseconds after somebody else became ready. A query crosses five threads on its way and may
meet such a thread at each of them, so work that takes longer than a fraction of a millisecond
offers the core again and again. Nothing is lost where nobody waits: half a microsecond.

Never on an event loop, where queries are: whoever yields to a computing engine gets the core
back late.
"""

from __future__ import annotations

import asyncio
import ctypes
import sys
from collections.abc import Callable
from typing import Any

MANY = 512
"""Rows of one request from which on a step over all of them is long."""


def _find() -> Callable[[], Any]:
    """Lets another ready thread have this core."""
    # os.sched_yield keeps the GIL while others run (Python 3.11); a ctypes call does not.
    if sys.platform == "win32":
        return lambda: None
    return ctypes.CDLL(None).sched_yield


_yield = _find()


def give_way() -> None:
    """Offer the core, on a thread that runs no event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        _yield()


async def breathe() -> None:
    """Between two parts of long work on the loop: whatever waits for the loop goes first."""
    await asyncio.sleep(0)
