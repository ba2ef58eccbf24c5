"""The data directory of `hedgerow up`: one owner at a time, private, with a note for `req`."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from hedgerow_shared.errors import StartupError


@dataclass(frozen=True, slots=True)
class Running:
    """What a running `hedgerow up` left for the other commands."""

    pid: int
    nats_url: str
    http_url: str


class DataDir:
    """Mode 0700: it holds what the bus stores, which is token ids of customers' texts."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: IO[str] | None = None

    @property
    def store(self) -> Path:
        return self.path.resolve() / "nats"

    @property
    def nats_config(self) -> Path:
        return self.path / "nats.conf"

    def login(self, role: str) -> Path:
        """Settings with which a service started by hand comes into this run's bus."""
        return self.path / f"{role}.toml"

    def acquire(self) -> None:
        """Create the folder and own it. Raises StartupError when another `up` does."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.path.chmod(0o700)
            lock = (self.path / "up.lock").open("a+", encoding="utf-8")
        except OSError as error:
            raise StartupError(
                f"--data-dir {self.path}: {error.strerror}; give a folder you can write to"
            ) from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.seek(0)
            owner = lock.read().strip() or "unknown"
            lock.close()
            raise StartupError(
                f"--data-dir {self.path} belongs to a hedgerow that runs (pid {owner}): stop it, "
                f"or start this one beside it with {beside(self.path)}"
            ) from None
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        self._lock = lock

    def write_private(self, path: Path, text: str) -> None:
        """Write a file that only this user can read (it may hold passwords)."""
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)

    def announce(self, running: Running) -> None:
        self.write_private(self.path / "up.json", json.dumps(asdict(running)) + "\n")

    def release(self) -> None:
        for path in (self.path / "up.json", *map(self.login, ("gateway", "worker"))):
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
        if self._lock is not None:
            self._lock.close()
            self._lock = None


def beside(path: Path) -> str:
    """Flags with which a second `up` runs beside the one that owns `path`."""
    return f"--data-dir {path}2 --port 0"


def running_in(path: Path) -> Running | None:
    """The `hedgerow up` that owns this data directory and is alive, if there is one."""
    try:
        running = Running(**json.loads((path / "up.json").read_text("utf-8")))
        os.kill(running.pid, 0)
    except (OSError, ValueError, TypeError):
        return None
    return running
