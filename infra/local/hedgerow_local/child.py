"""One process of `hedgerow up`: in a group of its own, its log passed on, surely stopped."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import re
import secrets
import signal
import sys
from collections import deque
from collections.abc import Callable

from hedgerow_local.logs import LogSink
from hedgerow_local.plan import Spec

_STARTUP_LINE = re.compile(r"hedgerow-\w+: ")
_PR_SET_PDEATHSIG = 1
_LINE_LIMIT_BYTES = 1 << 20


class Child:
    """A running process. Its service id is in `id`; `last_line` is the last thing it said."""

    def __init__(
        self, spec: Spec, sink: LogSink, process: asyncio.subprocess.Process, id_: str
    ) -> None:
        self.spec = spec
        self.id = id_
        self.pid = process.pid
        self._process = process
        self._sink = sink
        self._held = ""
        self._tail: deque[str] = deque(maxlen=1)
        self._pump = asyncio.create_task(self._pass_on())

    @classmethod
    async def start(cls, spec: Spec, sink: LogSink) -> Child:
        """Raises OSError when the program cannot be started at all."""
        id_ = secrets.token_hex(4)
        process = await asyncio.create_subprocess_exec(
            *(part.replace("{id}", id_) for part in spec.argv),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **spec.env},
            limit=_LINE_LIMIT_BYTES,
            # Own session: a terminal's Ctrl-C must reach `up` alone, which stops in order.
            start_new_session=True,
            preexec_fn=_die_with_parent(spec),
        )
        return cls(spec, sink, process, id_)

    @property
    def last_line(self) -> str:
        return self._held or (self._tail[0] if self._tail else "")

    async def wait(self) -> int:
        """Return the exit status once the process is gone and its log is passed on."""
        status = await self._process.wait()
        with contextlib.suppress(TimeoutError):
            # A grandchild may still hold the pipe; what it says is not waited for.
            await asyncio.wait_for(asyncio.shield(self._pump), 1.0)
        self._pump.cancel()
        self._kill_group(signal.SIGKILL)
        return status

    def terminate(self) -> None:
        """Ask it to drain and end."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()

    def kill(self) -> None:
        """End it and everything it started, now."""
        self._kill_group(signal.SIGKILL)

    def release_held_line(self) -> None:
        """Log the start-up error line after all: nobody else will report it."""
        if self._held:
            self._sink.put(self.spec.name, self._held)
            self._held = ""

    def _kill_group(self, signum: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signum)

    async def _pass_on(self) -> None:
        assert self._process.stdout is not None, "a pipe was asked for"
        while True:
            try:
                raw = await self._process.stdout.readline()
            except ValueError:  # a line over the limit; asyncio has thrown it away
                continue
            if not raw:
                return
            line = raw.decode("utf-8", "replace").rstrip()
            if not line or _is_noise(self.spec, line):
                continue
            self._tail.append(line)
            if _STARTUP_LINE.match(line):
                # Its exit status tells whether this line is the one error `up` ends with.
                self.release_held_line()
                self._held = line
            else:
                self._sink.put(self.spec.name, line)


def _is_noise(spec: Spec, line: str) -> bool:
    """nats-server greets with thirty lines that only its own developers read, and would have the
    passwords of this run, in a file only we can read, hashed."""
    return spec.role == "nats" and ("[INF]" in line or "Plaintext passwords" in line)


def _die_with_parent(spec: Spec) -> Callable[[], None] | None:
    """Linux: the kernel ends the child when `up` is killed, so that nothing is orphaned."""
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    parent = os.getpid()
    # nats-server closes its store on SIGTERM; the others have nothing worth saving by then.
    signum = signal.SIGTERM if spec.role == "nats" else signal.SIGKILL

    def ask_kernel() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, int(signum))
        if os.getppid() != parent:
            os._exit(1)

    return ask_kernel
