"""Which ports are free, and who holds the one that is not."""

from __future__ import annotations

import asyncio
import errno
import socket
import time
from pathlib import Path


def is_free(host: str, port: int) -> bool:
    """True when a server could listen on host:port now. Raises OSError for a bad host."""
    family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind, proto) as probe:
        # As servers do: a connection of an earlier run in TIME_WAIT must not count as busy.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return False
            raise
    return True


def holder(port: int, proc: Path = Path("/proc")) -> str:
    """ "NAME (pid N)" of the process listening on `port`, or "" where that cannot be seen."""
    inodes = _listening_inodes(port, proc)
    if not inodes:
        return ""
    wanted = {f"socket:[{inode}]" for inode in inodes}
    for process in proc.glob("[0-9]*"):
        try:
            if any(fd.readlink().name in wanted for fd in (process / "fd").iterdir()):
                name = (process / "comm").read_text("utf-8").strip()
                return f"{name} (pid {process.name})"
        except OSError:  # someone else's process, or one that just ended
            continue
    return ""


def _listening_inodes(port: int, proc: Path) -> set[str]:
    inodes: set[str] = set()
    for table in ("net/tcp", "net/tcp6"):
        try:
            rows = (proc / table).read_text("ascii").splitlines()[1:]
        except OSError:
            continue
        for row in rows:
            columns = row.split()
            local, state = columns[1], columns[3]
            if state == "0A" and int(local.rsplit(":", 1)[1], 16) == port:
                inodes.add(columns[9])
    return inodes


async def wait_listening(host: str, port: int, deadline_s: float) -> bool:
    """True once something accepts connections on host:port; False when the time is over."""
    end = time.monotonic() + deadline_s
    while time.monotonic() < end:
        try:
            _, writer = await asyncio.open_connection(host, port)
        except OSError:
            await asyncio.sleep(0.02)
            continue
        writer.close()
        return True
    return False
