"""Helper threads of the latency mode, each pinned to a core of its own.

A woken helper is put on the core of whoever woke it, and both then share that core while the
other idles: twice the time of one thread. So caller and helpers are pinned, to cores that are
not two threads of one core and that no other process of this kind has. Helpers sleep in the
kernel between passes.
"""

from __future__ import annotations

import logging
import os
import platform
import socket
import threading
from collections.abc import Callable, Collection
from functools import cache
from pathlib import Path

from hedgerow_engine.native.crew import SLEEPERS, crew_bytes
from hedgerow_engine.native.memory import Memory, address

_JOIN_S = 5.0
_log = logging.getLogger(__name__)


def usable_threads(asked: int, log: Callable[[str], None]) -> int:
    """How many of the asked threads can have a core of their own here."""
    if asked == 1:
        return 1
    if platform.system() != "Linux" or platform.machine() not in ("x86_64", "aarch64"):
        log("native: --threads above 1 needs Linux on x86-64 or arm64; running 1 thread")
        return 1
    cores = len(separate_cores())
    if cores < asked:
        log(f"native: --threads {asked}, but this process may use {cores} cores; running {cores}")
    return min(asked, cores)


@cache
def separate_cores() -> list[int]:
    """CPU numbers this process may run on, one per physical core, in order. Asked once: a thread
    of ours that asks again may be pinned."""
    chosen: list[int] = []
    seen: set[str] = set()
    for cpu in sorted(os.sched_getaffinity(0)):
        file = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        try:
            siblings = file.read_text("ascii").strip()
        except OSError:
            siblings = str(cpu)
        if siblings not in seen:
            seen.add(siblings)
            chosen.append(cpu)
    return chosen


@cache
def own_cores(count: int) -> list[int]:
    """So many of `separate_cores`: those first that no other process has taken, and then taken
    until this one ends. Several workers on one machine must not all begin with its first core.
    """
    cores, chosen = separate_cores(), list[int]()
    for core in cores:
        if len(chosen) < count and (core in _claims or _claim(core)):
            chosen.append(core)
    shared = [core for core in cores if core not in chosen]
    return sorted([*chosen, *shared[: count - len(chosen)]])


_claims: dict[int, socket.socket] = {}


def _claim(core: int) -> bool:
    """An abstract socket's name is taken by one process, and free again once that is gone; it is
    known to those that share this one's network, as processes that share cores mostly do."""
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        claim.bind(f"\0hedgerow-core-{core}")
    except OSError:
        claim.close()
        return False
    _claims[core] = claim
    return True


class Crew:
    """The shared block of a program's threads, and the helpers that serve it.

    helper, rouse, dismiss: the program's exported functions (model, crew, member), (crew) and
        (crew); the first returns after the last

    Whoever brings a pass is put on the first core for its duration, and back: other work of that
    thread, and threads that it starts, are not meant.
    """

    def __init__(
        self,
        helper: Callable[[int, int, int], None],
        rouse: Callable[[int], None],
        dismiss: Callable[[int], None],
        model: int,
        threads: int,
    ) -> None:
        memory = Memory(crew_bytes(threads))
        self._block = memory.take(crew_bytes(threads))
        self.address = address(self._block)
        self._cores = own_cores(threads)
        self._helper, self._rouse, self._dismiss = helper, rouse, dismiss
        self._model = model
        self._threads = [
            threading.Thread(
                target=self._serve, args=(member,), name=f"hedgerow-native-{member}", daemon=True
            )
            for member in range(1, threads)
        ]
        for thread in self._threads:
            thread.start()

    def enter(self) -> set[int]:
        """Put the calling thread on the first core; what is returned goes to `leave`."""
        cores = os.sched_getaffinity(0)
        _pin(self._cores[:1])
        return cores

    def leave(self, cores: set[int]) -> None:
        """The calling thread's pass is over."""
        _pin(cores)

    def rouse(self) -> None:
        """A pass is near: helpers that sleep should be awake when it comes."""
        self._rouse(self.address)

    def close(self) -> None:
        """Send the helpers home. No pass may be running."""
        self._dismiss(self.address)
        for thread in self._threads:
            thread.join(_JOIN_S)

    def sleeping(self) -> int:
        """Helpers asleep at the moment; for tests."""
        return int(self._block.view("i8")[SLEEPERS // 8])

    def _serve(self, member: int) -> None:
        _pin([self._cores[member]])
        self._helper(self._model, self.address, member)


def _pin(cores: Collection[int]) -> None:
    """A process may lose cores while it runs (a container that is given others): it is slower
    then, and serves."""
    try:
        os.sched_setaffinity(0, cores)
    except OSError as error:
        _complain(f"native: threads cannot stay on cores {sorted(cores)} ({error.strerror})")


@cache
def _complain(text: str) -> None:
    _log.warning("%s", text)
