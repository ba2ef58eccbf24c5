"""A service that was started by another must not outlive it."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time

_PR_SET_PDEATHSIG = 1
_POLL_S = 0.5


def die_with_parent(parent: int | None = None) -> None:
    """Send SIGTERM to this process when its parent ends, however it ends.

    parent: pid the caller expects to have; if it is not our parent any more, the signal is sent
        at once. None takes the parent of this moment.

    Linux tells us itself (PR_SET_PDEATHSIG, which watches the *thread* that started us: start
    services from a thread that lives as long as the process). Elsewhere a thread looks.
    """
    expected = os.getppid() if parent is None else parent
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        # The parent may have died before the kernel was asked.
        if os.getppid() != expected:
            os.kill(os.getpid(), signal.SIGTERM)
        return
    threading.Thread(target=_watch, args=(expected,), name="orphan-watch", daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_POLL_S)
    os.kill(os.getpid(), signal.SIGTERM)
