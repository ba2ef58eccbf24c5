"""Keeps one process alive: starts it, says when it died, starts it again after a pause."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from hedgerow_local.child import Child
from hedgerow_local.logs import LogSink
from hedgerow_local.plan import Spec
from hedgerow_shared.errors import StartupError

CANNOT_START = 2
"""Exit status of a service whose last line is a StartupError."""
_TRIES_AT_START = 3


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses between restarts: doubled while the process keeps dying young."""

    first_s: float = 0.2
    longest_s: float = 10.0
    young_s: float = 20.0

    def pause_s(self, deaths: int) -> float:
        """`deaths` in a row, each younger than `young_s`; 1 is the first."""
        return min(self.first_s * 2 ** (deaths - 1), self.longest_s)


class Keeper:
    """A process that is started again until `stop` is called.

    `on_hopeless` is called with the reason when it cannot get through its first start: it said
    so itself (exit 2), or died three times. Once `started_once` is set, it is always retried.
    """

    def __init__(
        self,
        spec: Spec,
        sink: LogSink,
        *,
        on_hopeless: Callable[[StartupError], None],
        backoff: Backoff | None = None,
    ) -> None:
        self.spec = spec
        self.child: Child | None = None
        self.started_once = False
        self._sink = sink
        self._on_hopeless = on_hopeless
        self._backoff = backoff or Backoff()
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._keep(), name=f"keep {self.spec.name}")

    async def stop(self, grace_s: float) -> None:
        """Ask the process to end, wait `grace_s`, then end it. Returns when it is gone."""
        self._stopping.set()
        if self._task is None:
            return
        if self.child is not None:
            self.child.terminate()
        done, _ = await asyncio.wait({self._task}, timeout=grace_s)
        if not done:
            self._say(f"did not end within {grace_s:.0f} s: killed")
            self.kill()
            await self._task

    def kill(self) -> None:
        self._stopping.set()
        if self.child is not None:
            self.child.kill()

    async def _keep(self) -> None:
        deaths = 0
        while not self._stopping.is_set():
            begin = time.monotonic()
            status, last_line = await self._run_once(again=deaths > 0)
            if self._stopping.is_set():
                return
            deaths = 1 if time.monotonic() - begin > self._backoff.young_s else deaths + 1
            if not self.started_once and (status == CANNOT_START or deaths >= _TRIES_AT_START):
                self._on_hopeless(StartupError(self._reason(status, last_line)))
                return
            pause_s = self._backoff.pause_s(deaths)
            self._say(f"{how_it_ended(status)}; starting it again in {pause_s:.1f} s")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause_s)

    async def _run_once(self, *, again: bool) -> tuple[int, str]:
        """Returns (exit status, last line of its log)."""
        try:
            child = await Child.start(self.spec, self._sink)
        except OSError as error:
            return 126, f"{self.spec.argv[0]}: {error.strerror}"
        self.child = child
        if self._stopping.is_set():  # asked to stop while it was being started
            child.terminate()
        elif again:
            self._say(f"started again (pid {child.pid})")
        status = await child.wait()
        self.child = None
        last_line = child.last_line
        # Several children fail alike; while stopping, one of them has been reported already.
        if not self._stopping.is_set() and (self.started_once or status != CANNOT_START):
            child.release_held_line()
        return status, last_line

    def _reason(self, status: int, last_line: str) -> str:
        if status == CANNOT_START and last_line:
            return last_line
        said = f"; it said: {last_line}" if last_line else ""
        return f"{self.spec.name} {how_it_ended(status)} while starting{said}"

    def _say(self, text: str) -> None:
        self._sink.put("up", f"{self.spec.name} {text}")


def how_it_ended(status: int) -> str:
    if status >= 0:
        return f"ended with status {status}"
    try:
        return f"was ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"was ended by signal {-status}"
